"""Running a model in eval mode without leaving a trace."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model is in eval mode within the block; afterwards every part has its own mode again, frozen ones too.

    >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm2d(3).eval())
    >>> with eval_mode(model):
    ...     model[0].training
    False
    >>> [part.training for part in model]
    [True, False]
    """
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
