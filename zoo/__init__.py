"""Backbones: names, attention modules, families, features and the one way to create a model."""

from foveal.kernels._names import UnknownName

__all__ = ["UnknownName"]
