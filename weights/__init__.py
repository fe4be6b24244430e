"""Weights: the catalogue of facts, and the one safe way in and out. Knows names and shapes, never classes."""

from foveal.weights.errors import UnsafeCheckpoint, WeightsError

__all__ = ["UnsafeCheckpoint", "WeightsError"]
