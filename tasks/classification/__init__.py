"""Classification of pictures."""

from foveal.tasks.classification.interface import DEFAULT_MODEL, Prediction, classify

__all__ = ["DEFAULT_MODEL", "Prediction", "classify"]
