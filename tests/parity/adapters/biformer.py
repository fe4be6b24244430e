"""BiFormer, its routed attention and the full attention of its last stage."""

from foveal.zoo.attention._common import PointwiseLinear
from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention, BilevelRoutingAttentionNCHW
from foveal.zoo.attention.softmax import SoftmaxAttention
from foveal.zoo.create import create_model
from tests.parity.adapters._common import Adapter, Case, Fill, Tensors, is_nchw, on_map, renamed

ROUTED = {name: name for name in ("dim", "num_heads", "qk_dim", "n_win", "topk", "side_dwconv", "auto_pad")} | {
    "kv_per_win": "kv_per_win", "soft_routing": "soft_routing", "param_routing": "param_routing",
    "kv_downsample_mode": "", "diff_routing": "",
}  # fmt: skip


def routed(case: Case, fill: Fill, inputs: Tensors) -> Tensors:
    """One routed attention module on an NHWC or NCHW map."""
    kwargs = dict(case["constructor"]["kwargs"])
    mode = kwargs.get("kv_downsample_mode", "identity")
    if mode not in ("identity", "ada_avgpool"):
        raise NotImplementedError(f"the original's kv_downsample_mode {mode}")
    if mode == "identity":
        kwargs.pop("kv_per_win", None)
    kind = BilevelRoutingAttentionNCHW if is_nchw(case) else BilevelRoutingAttention
    return on_map(case, fill, inputs, kind, renamed(kwargs, ROUTED))


def lepe(case: Case, fill: Fill, inputs: Tensors) -> Tensors:
    """Full attention with a depthwise convolution beside it."""
    names = {name: name for name in ("dim", "num_heads", "qkv_bias", "side_dwconv")}
    options = renamed(case["constructor"]["kwargs"], names, {"num_heads": 8, "qkv_bias": False, "side_dwconv": 5})
    if is_nchw(case):
        options |= {"linear": PointwiseLinear, "enhance": "value"}
    return on_map(case, fill, inputs, SoftmaxAttention, options)


BIFORMER = {
    "auto_pad": "auto_pad", "n_win": "n_win", "depth": "depths", "embed_dim": "dims", "mlp_ratios": "mlp_ratio",
    "topks": "topk", "kv_downsample_mode": "", "kv_per_wins": "", "side_dwconv": "", "before_attn_dwconv": "",
    "layer_scale_init_value": "", "qk_dims": "", "head_dim": "", "pre_norm": "", "pe": "", "num_classes": "num_classes",
}  # fmt: skip


def biformer(case: Case, fill: Fill, inputs: Tensors) -> Tensors:
    """The classifier and its stages, or the dense variant."""
    constructor = case["constructor"]
    options = renamed(constructor["kwargs"], BIFORMER)
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
