"""Registers our backbones in timm as soon as timm is there, without importing it ourselves."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

from foveal.zoo.registry import models


def _entry_point(name: str) -> Any:
    def build(pretrained: bool = False, **options: Any) -> Any:
        from foveal.zoo.create import create_model

        # what timm adds for its own builder; a row of ours holds the same facts
        for key in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
            options.pop(key, None)
        return create_model(name, pretrained=pretrained, **options)

    build.__name__ = build.__qualname__ = name
    build.__module__ = __name__
    build.__doc__ = f"{name}, see `foveal show {name}`."
    return build


def register() -> None:
    """Makes every model of ours known to ``timm.create_model``.

    Raises:
        ValueError: when timm has a model of that name that is not ours.
    """
    from timm.models import _registry

    for name in models():
        known = _registry._model_entrypoints.get(name)
        if known is None:
            _registry.register_model(_entry_point(name))
        elif known.__module__ != __name__:
            raise ValueError(f"model {name!r} is defined by both foveal and {known.__module__}")


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets the usual finders import timm, then calls `register`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "timm":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("timm")
        if spec is None or spec.loader is None:
            return spec
        self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        register()


def register_when_imported() -> None:
    """Registers at once when timm is loaded, else right after its import: importing it here would import torch."""
    if "timm" in sys.modules:
        register()
    elif not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
