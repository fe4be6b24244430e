"""foveal: an attention mechanism, a backbone, a task and a benchmark are four independent choices, each by name.

Importing it registers the backbones in timm and does nothing else; every public name loads on first use.
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

from foveal.zoo.timm_bridge import register_when_imported

if TYPE_CHECKING:
    from foveal.eval.runner import evaluate
    from foveal.exporting import export
    from foveal.kernels._operator import forced, why
    from foveal.kernels.registry import get_operator as operator
    from foveal.kernels.registry import list_operators
    from foveal.weights import UnsafeCheckpoint, WeightsError
    from foveal.zoo import UnknownName
    from foveal.zoo.create import create_model, load, load_weights, save, save_pretrained
    from foveal.zoo.images import ImageError, read_image
    from foveal.zoo.registry import list_attentions, list_models
    from foveal.zoo.transforms import transforms_for

__version__ = "0.1.0"

_HOMES = {
    "ImageError": "zoo.images",
    "UnknownName": "zoo",
    "UnsafeCheckpoint": "weights",
    "WeightsError": "weights",
    "create_model": "zoo.create",
    "evaluate": "eval.runner",
    "export": "exporting",
    "forced": "kernels._operator",
    "list_attentions": "zoo.registry",
    "list_models": "zoo.registry",
    "list_operators": "kernels.registry",
    "load": "zoo.create",
    "load_weights": "zoo.create",
    "operator": "kernels.registry",
    "read_image": "zoo.images",
    "save": "zoo.create",
    "save_pretrained": "zoo.create",
    "transforms_for": "zoo.transforms",
    "why": "kernels._operator",
}
_RENAMED = {"operator": "get_operator"}

__all__ = [
    "ImageError",
    "UnknownName",
    "UnsafeCheckpoint",
    "WeightsError",
    "__version__",
    "create_model",
    "evaluate",
    "export",
    "forced",
    "list_attentions",
    "list_models",
    "list_operators",
    "load",
    "load_weights",
    "operator",
    "read_image",
    "save",
    "save_pretrained",
    "transforms_for",
    "why",
]

logging.getLogger("foveal").addHandler(logging.NullHandler())
register_when_imported()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'foveal' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"foveal.{_HOMES[name]}"), _RENAMED.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
