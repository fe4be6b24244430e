"""Weights made for one size, number of channels or number of classes, fitted to a model built with others."""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from foveal.weights.errors import WeightsError

Shape = tuple[int, ...]
Shapes = dict[str, tuple[Shape, Shape]]  # name: (shape in the file, shape in the model)


class Adaptation(NamedTuple):
    """What `adapt` made of a state dict.

    `state` has what the model can take and names that it does not know; `adapted` the tensors of it whose shape was
    changed. Not in it are `skipped`, the classifier's tensors where the class count differs; `unfit`, those of other
    shapes; and `dropped`, the names of a head that the model does not have.
    """

    state: dict[str, Tensor]
    adapted: Shapes
    skipped: Shapes
    unfit: Shapes
    dropped: list[str]


def adapt_channels(weight: Tensor, in_chans: int) -> Tensor:
    """Kernels of a first convolution for another number of input channels.

    To one channel they are summed, so that a grey picture gives what it gave when repeated over all channels. Else
    they are repeated in a circle and scaled by I / in_chans, which keeps the size of the features: from red, green,
    blue to 4 channels gives (red, green, blue, red) * 3/4.

    Args:
        weight: (O, I, kh, kw)
    Returns:
        (O, in_chans, kh, kw), in the dtype of `weight`.
    """
    given = weight.shape[1]
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    if in_chans == 1:
        return wide.sum(1, keepdim=True).to(weight.dtype)
    circle = torch.arange(in_chans, device=weight.device) % given
    return (wide[:, circle] * (given / in_chans)).to(weight.dtype)


@torch.no_grad()
def adapt(state: dict[str, Tensor], model: nn.Module) -> Adaptation:
    """Fit a state dict to the model: names, position tables, input channels, 1x1 convolutions, classifier.

    In this order: `remap_keys(state)` of the model's class; `checkpoint_filter_fn(state, model)` of the module that
    the class is defined in (timm's resizes position tables and what else depends on the picture's size); linear
    weights for 1x1 convolutions and back; channels of the first convolution. The arguments are not changed.

    Raises:
        WeightsError: when one of the two functions fails on this state.
    """
    remap = getattr(type(model), "remap_keys", None)
    if remap is not None:
        state = _call("remap_keys", remap, dict(state))
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    resize = getattr(sys.modules.get(type(model).__module__), "checkpoint_filter_fn", None)
    if resize is not None:
        state = _call("checkpoint_filter_fn", resize, dict(state), model)

    own = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if isinstance(tensor, Tensor)}
    stems, heads = _stems(model, own), _heads(model)
    headless = getattr(model, "num_classes", None) == 0
    result = Adaptation({}, {}, {}, {}, [])
    for name, tensor in state.items():
        shape = own.get(name)
        if shape is None:
            if headless and name.startswith(tuple(f"{head}." for head in heads)):
                result.dropped.append(name)
            else:
                result.state[name] = tensor
            continue
        fitted = _fit(tensor, shape, name in stems)
        known = given.get(name, tuple(tensor.shape))
        is_head = name in {f"{head}.{part}" for head in heads for part in ("weight", "bias")}
        if fitted.shape == shape:
            result.state[name] = fitted
            if known != shape:
                result.adapted[name] = (known, shape)
        elif is_head and fitted.shape[1:] == shape[1:]:
            result.skipped[name] = (known, shape)
        else:
            result.unfit[name] = (known, shape)
    return result


def _call(name: str, function: Callable[..., dict[str, Tensor]], *args: Any) -> dict[str, Tensor]:
    try:
        return function(*args)
    except Exception as error:  # these functions index the state by names that another model's file does not have
        reason = f"{type(error).__name__}: {error!s:.300}"
        raise WeightsError(f"{name} failed, so this may be the checkpoint of another model ({reason})") from error


def _fit(tensor: Tensor, shape: Shape, is_stem: bool) -> Tensor:
    if {tensor.ndim, len(shape)} == {2, 4} and (*tensor.shape, 1, 1)[:4] == (*shape, 1, 1)[:4]:
        return tensor.reshape(shape)
    if is_stem and tensor.ndim == 4 and (tensor.shape[0], *tensor.shape[2:]) == (shape[0], *shape[2:]):
        return tensor if tensor.shape[1] == shape[1] else adapt_channels(tensor, shape[1])
    return tensor


def _stems(model: nn.Module, own: dict[str, Shape]) -> list[str]:
    """Names of the weights that see the picture: those declared, else the first 4-D weight of the model."""
    declared = _declared(model, "first_conv")
    if declared:
        return [f"{name}.weight" for name in declared if len(own.get(f"{name}.weight", ())) == 4]
    return [name for name, shape in own.items() if len(shape) == 4 and name.endswith("weight")][:1]


def _heads(model: nn.Module) -> tuple[str, ...]:
    return _declared(model, "classifier") or ("head", "head.fc", "fc")


def _declared(model: nn.Module, key: str) -> tuple[str, ...]:
    names = (getattr(model, "pretrained_cfg", None) or {}).get(key) or ()
    return (names,) if isinstance(names, str) else tuple(names)
