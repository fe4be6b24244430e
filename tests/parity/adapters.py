"""What we build for each parity case: one table from case names to functions. A new family adds rows here."""

import fnmatch
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foveal.zoo.attention._common import PointwiseLinear
from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention, BilevelRoutingAttentionNCHW
from foveal.zoo.attention.softmax import SoftmaxAttention
from foveal.zoo.create import create_model

Case = dict[str, Any]
Tensors = dict[str, Tensor]
Adapter = Callable[[Case, Callable[[nn.Module], nn.Module], Tensors], Tensors]
# Args: the case; a function that checks keys and norm eps of a module, fills it and puts it in eval mode; the inputs.
# Returns the outputs by the case's names.


def _renamed(kwargs: dict[str, Any], names: dict[str, str], default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The original's keywords under our names; one that we don't know is an error, not dropped."""
    unknown = kwargs.keys() - names.keys()
    if unknown:
        raise NotImplementedError(f"the original's option {', '.join(sorted(unknown))}")
    return (default or {}) | {names[key]: value for key, value in kwargs.items() if names[key]}


ROUTED = {name: name for name in ("dim", "num_heads", "qk_dim", "n_win", "topk", "side_dwconv", "auto_pad")} | {
    "kv_per_win": "kv_per_win", "soft_routing": "soft_routing", "param_routing": "param_routing",
    "kv_downsample_mode": "", "diff_routing": "",
}  # fmt: skip


def routed(case: Case, fill: Callable[[nn.Module], nn.Module], inputs: Tensors) -> Tensors:
    """One routed attention module on an NHWC or NCHW map."""
    kwargs = dict(case["constructor"]["kwargs"])
    mode = kwargs.get("kv_downsample_mode", "identity")
    if mode not in ("identity", "ada_avgpool"):
        raise NotImplementedError(f"the original's kv_downsample_mode {mode}")
    if mode == "identity":
        kwargs.pop("kv_per_win", None)
    kind = BilevelRoutingAttentionNCHW if _nchw(case) else BilevelRoutingAttention
    return _on_map(case, fill, inputs, kind, _renamed(kwargs, ROUTED))


def lepe(case: Case, fill: Callable[[nn.Module], nn.Module], inputs: Tensors) -> Tensors:
    """Full attention with a depthwise convolution beside it."""
    names = {name: name for name in ("dim", "num_heads", "qkv_bias", "side_dwconv")}
    options = _renamed(case["constructor"]["kwargs"], names, {"num_heads": 8, "qkv_bias": False, "side_dwconv": 5})
    if _nchw(case):
        options |= {"linear": PointwiseLinear, "enhance": "value"}
    return _on_map(case, fill, inputs, SoftmaxAttention, options)


def _nchw(case: Case) -> bool:
    return case["returns"] == "NCHW"


def _on_map(
    case: Case, fill: Callable[[nn.Module], nn.Module], inputs: Tensors, kind: type[nn.Module], options: dict[str, Any]
) -> Tensors:
    x = inputs[""].permute(0, 2, 3, 1) if _nchw(case) else inputs[""]
    grid = (x.shape[1], x.shape[2])
    module = fill(kind(options.pop("dim"), **options))
    out = module(x.flatten(1, 2), grid=grid).unflatten(1, grid)
    return {"out": out.permute(0, 3, 1, 2) if _nchw(case) else out}


BIFORMER = {
    "auto_pad": "auto_pad", "n_win": "n_win", "depth": "depths", "embed_dim": "dims", "mlp_ratios": "mlp_ratio",
    "topks": "topk", "kv_downsample_mode": "", "kv_per_wins": "", "side_dwconv": "", "before_attn_dwconv": "",
    "layer_scale_init_value": "", "qk_dims": "", "head_dim": "", "pre_norm": "", "pe": "", "num_classes": "num_classes",
}  # fmt: skip


def biformer(case: Case, fill: Callable[[nn.Module], nn.Module], inputs: Tensors) -> Tensors:
    """The classifier and its stages, or the dense variant."""
    constructor = case["constructor"]
    options = _renamed(constructor["kwargs"], BIFORMER)
    if "topk" in options:
        options["topk"] = tuple(None if k == -2 else k for k in options["topk"])
    if "mlp_ratio" in options:
        options["mlp_ratio"] = float(options["mlp_ratio"][0])
    for name in ("depths", "dims"):
        if name in options:
            options[name] = tuple(options[name])
    if "dims" in options:
        options["num_heads"] = tuple(dim // constructor["kwargs"]["head_dim"] for dim in options["dims"][:-1]) + (8,)
    if "name" not in constructor:
        net = create_model("biformer_tiny", features_only=True, out_norms=True, num_classes=0, **options)
        fill(net.model)
        return {f"feature.{i}": y for i, y in enumerate(net.eval()(inputs[""]))}
    model = fill(create_model(constructor["name"], **options))
    features, stages = model.forward_intermediates(inputs[""])
    return {"logits": model.forward_head(features)} | {f"stage.{i}": y for i, y in enumerate(stages)}


ADAPTERS: dict[str, Adapter] = {
    "attention_lepe_*": lepe,
    "biformer_*": biformer,
    "bra_*": routed,
}


def adapter_for(name: str) -> Adapter | None:
    """The function for a case name, or None when its system is not built yet."""
    found = [adapter for pattern, adapter in ADAPTERS.items() if fnmatch.fnmatchcase(name, pattern)]
    return found[0] if found else None


@torch.no_grad()
def run(case: Case, adapter: Adapter, fill: Callable[[nn.Module], nn.Module], inputs: Tensors) -> Tensors:
    """Outputs of our build of a case."""
    return adapter(case, fill, inputs)
