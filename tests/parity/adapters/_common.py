"""What the adapters share: their types, keywords under our names, modules on maps."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Case = dict[str, Any]
Tensors = dict[str, Tensor]
Fill = Callable[[nn.Module], nn.Module]
Adapter = Callable[[Case, Fill, Tensors], Tensors]
# Args: the case; a function that checks keys and norm eps of a module, fills it and puts it in eval mode; the inputs.
# Returns the outputs by the case's names.


def renamed(kwargs: dict[str, Any], names: dict[str, str], default: dict[str, Any] | None = None) -> dict[str, Any]:
    """The original's keywords under our names (those named "" are dropped); one we don't know is an error."""
    unknown = kwargs.keys() - names.keys()
    if unknown:
        raise NotImplementedError(f"the original's option {', '.join(sorted(unknown))}")
    return (default or {}) | {names[key]: value for key, value in kwargs.items() if names[key]}


def is_nchw(case: Case) -> bool:
    """Whether the original returns channels first."""
    return bool(case["returns"] == "NCHW")


def on_map(case: Case, fill: Fill, inputs: Tensors, kind: type[nn.Module], options: dict[str, Any]) -> Tensors:
    """One of our token modules where the original takes a map."""
    x = inputs[""].permute(0, 2, 3, 1) if is_nchw(case) else inputs[""]
    grid = (x.shape[1], x.shape[2])
    module = fill(kind(options.pop("dim"), **options))
    out = module(x.flatten(1, 2), grid=grid).unflatten(1, grid)
    return {"out": out.permute(0, 3, 1, 2) if is_nchw(case) else out}
