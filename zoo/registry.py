"""Names of backbones and attentions, what each can do, and a kind answer to a wrong name.

Facts are read from the literals ``FAMILY`` and ``VARIANTS`` of a family file and ``ATTENTION`` of an attention file,
without importing them, so that lists need no torch. A file joins by being in its folder.
"""

import fnmatch
import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveal.kernels._names import UnknownName, declarations
from foveal.weights.catalogue import rows_of

if TYPE_CHECKING:
    from torch import nn

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class ModelEntry:
    """What is known of a model before it is built.

    Attributes:
        name: what a user types.
        family: module in ``zoo/families``.
        attention: name of its attention in ``zoo/attention``.
        tasks: what it is used for.
        any_size: takes any input size, rectangles included.
        source: the paper.
        tags: weights that are known, the default one first.
    """

    name: str
    family: str
    attention: str
    tasks: tuple[str, ...]
    any_size: bool
    source: str
    tags: tuple[str, ...]


@functools.cache
def models() -> dict[str, ModelEntry]:
    """All entries by name.

    Raises:
        ValueError: when two families define one name.
    """
    entries: dict[str, ModelEntry] = {}
    variants = declarations(FOLDER / "families", "VARIANTS")
    for family, facts in declarations(FOLDER / "families", "FAMILY").items():
        for name in variants[family]:
            if name in entries:
                raise ValueError(f"model {name!r} is defined by both {entries[name].family} and {family}")
            tags = tuple(row.tag for row in rows_of(name))
            entries[name] = ModelEntry(
                name, family, facts["attention"], tuple(facts["tasks"]), facts["any_size"], facts["source"], tags
            )
    return entries


def list_models(
    pattern: str = "*",
    *,
    task: str | None = None,
    attention: str | None = None,
    pretrained: bool = False,
    commercial: bool = False,
) -> list[str]:
    """Names of our models that match a pattern and all filters.

    Args:
        pattern: shell pattern, e.g. ``"biformer*"``.
        task: only models used for this task.
        attention: only models built on this attention.
        pretrained: only models with known weights.
        commercial: only models with weights whose code, weights and data licences all allow commercial use.

    >>> list_models("biformer_s*")
    ['biformer_small', 'biformer_stl', 'biformer_stl_nchw']
    """
    if attention is not None and attention not in list_attentions():
        raise UnknownName("attention", attention, list_attentions())
    return [
        e.name
        for e in models().values()
        if fnmatch.fnmatchcase(e.name, pattern)
        and (task is None or task in e.tasks)
        and (attention is None or e.attention == attention)
        and (not pretrained or e.tags)
        and (not commercial or any(row.commercial for row in rows_of(e.name)))
    ]


def is_model(name: str) -> bool:
    """Whether a name without tag is one of our models."""
    return name in models()


def build(name: str, **options: Any) -> "nn.Module":
    """One of our models with fresh weights; options are those of its family's ``build``.

    Raises:
        UnknownName: with the nearest names.
        TypeError: on an option the family does not have.
    """
    if name not in models():
        raise UnknownName("model", name, models())
    module = importlib.import_module(f"foveal.zoo.families.{models()[name].family}")
    return module.build(name, **options)


def variant(name: str) -> dict[str, Any]:
    """The settings in the family's table for this name."""
    return declarations(FOLDER / "families", "VARIANTS")[models()[name].family][name]


@functools.cache
def describe_attentions() -> dict[str, dict[str, Any]]:
    """``{name: facts}`` of every attention module: needs_grid, prefix, mask, cross, cost, source."""
    return declarations(FOLDER / "attention", "ATTENTION")


def list_attentions() -> list[str]:
    """Names of the attention modules that can be handed to a backbone.

    >>> list_attentions()
    ['bilevel_routing', 'softmax']
    """
    return list(describe_attentions())


def get_attention(name: str) -> type["nn.Module"]:
    """The class of an attention module.

    Raises:
        UnknownName: with the nearest names.
    """
    facts = describe_attentions().get(name)
    if facts is None:
        raise UnknownName("attention", name, list_attentions())
    return getattr(importlib.import_module(f"foveal.zoo.attention.{name}"), facts["class"])
