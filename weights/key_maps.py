"""Key maps: from the names in an original file to those of a model, as pure functions that a row names in ``remap``.

A map leaves names that it does not know as they are, so that it does no harm to a file that has the model's own.
"""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
KeyMap = Callable[[dict[str, Any]], dict[str, Any]]

_STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks a stage of EfficientNet-B0 and -Lite0
_PLACES = [(stage, block) for stage, count in enumerate(_STAGES) for block in range(count)]
_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_LATER = {
    "_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2",
    "_project_conv": "conv_pwl", "_bn2": "bn3",
}  # fmt: skip


def efficientnet_pytorch(state: dict[str, T]) -> dict[str, T]:
    """Names of lukemelas/EfficientNet-PyTorch to timm's, for models with the stages of B0 and no squeeze-excitation.

    >>> list(efficientnet_pytorch({"_conv_stem.weight": 0, "_blocks.2._project_conv.weight": 0, "_fc.bias": 0}))
    ['conv_stem.weight', 'blocks.1.1.conv_pwl.weight', 'classifier.bias']
    """
    return {_timm_name(name): value for name, value in state.items()}


def _timm_name(name: str) -> str:
    first, *rest = name.split(".")
    if first in _OUTER:
        return ".".join([_OUTER[first], *rest])
    if first != "_blocks" or len(rest) < 2 or not rest[0].isdecimal() or int(rest[0]) >= len(_PLACES):
        return name
    stage, block = _PLACES[int(rest[0])]
    names = _LATER if stage else _FIRST
    return ".".join(["blocks", str(stage), str(block), names.get(rest[1], rest[1]), *rest[2:]])


KEY_MAPS: dict[str, KeyMap] = {"efficientnet_pytorch": efficientnet_pytorch}
