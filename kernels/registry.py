"""The operators by name. A file of this folder that assigns ``OPERATOR`` joins by being there."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveal.kernels._names import UnknownName, declarations

if TYPE_CHECKING:
    from foveal.kernels._operator import Operator

FOLDER = Path(__file__).resolve().parent


def describe_operators() -> dict[str, dict[str, Any]]:
    """``{name: facts}`` of every operator, without importing torch.

    >>> sorted(describe_operators()["softmax"])
    ['computes', 'cost', 'limits', 'source']
    """
    return declarations(FOLDER, "OPERATOR")


def list_operators() -> list[str]:
    """Names of all attention operators.

    >>> "bilevel_routing" in list_operators()
    True
    """
    return list(describe_operators())


def get_operator(name: str) -> "Operator":
    """The operator of this name, ready to be called.

    Raises:
        UnknownName: with the nearest names.

    >>> get_operator("softmax")
    <operator softmax: sdpa, reference>
    """
    if name not in list_operators():
        raise UnknownName("operator", name, list_operators())
    return getattr(importlib.import_module(f"foveal.kernels.{name}"), name)
