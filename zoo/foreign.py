"""Models from elsewhere, named with a prefix: ``timm:resnet50.a1_in1k``, ``module:package.file:function``."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from foveal.weights.catalogue import Preprocessing
from foveal.weights.errors import WeightsError
from foveal.weights.saving import state_hash
from foveal.zoo import UnknownName

PREFIXES = ("timm", "module", "hf-hub", "local-dir")  # the last two are timm's own
LATER = ("open_clip", "hf", "kornia")


class Name(NamedTuple):
    """A model name in its parts.

    `prefix` is "" for a bare name; `arch` names weights rows and has no tag; names that have no tags keep their prefix.
    """

    prefix: str
    arch: str
    tag: str


@dataclass(frozen=True)
class Foreign:
    """A model made elsewhere and what is known of it.

    Attributes:
        model: with ``num_classes`` where it gives one row of logits a picture.
        options: what it was built with, in plain values.
        preprocessing: the input it expects; guessed says that nobody stated it.
        weights: what its weights are called, "" when they are random.
        labels: class names.
    """

    model: nn.Module
    options: dict[str, Any]
    preprocessing: Preprocessing
    guessed: bool = False
    weights: str = ""
    labels: tuple[str, ...] = field(default=(), repr=False)


def parse(name: str) -> Name:
    """A name in its parts; nothing is looked up.

    >>> parse("timm:resnet50.a1_in1k")
    Name(prefix='timm', arch='resnet50', tag='a1_in1k')
    >>> parse("module:mine.nets:small")
    Name(prefix='module', arch='module:mine.nets:small', tag='')
    """
    rest = name.removeprefix("timm:")
    prefix, colon, _ = rest.partition(":")
    if colon:
        return Name(prefix, rest, "")
    arch, _, tag = rest.partition(".")
    return Name("timm" if rest != name else "", arch, tag)


def check_prefix(name: str) -> None:
    """Refuses a name with a prefix that nothing here can build.

    Raises:
        UnknownName: with near ones and those that exist.
    """
    prefix = parse(name).prefix
    if prefix in ("", *PREFIXES):
        return
    exist = f"there are {', '.join(p + ':' for p in PREFIXES)}"
    if prefix in LATER:
        raise UnknownName("prefix", f"{prefix}:", (), hint=f"models of {prefix} are not built yet, {exist}")
    raise UnknownName("prefix", f"{prefix}:", [f"{p}:" for p in PREFIXES], hint=exist)


def build(
    name: str, *, pretrained: bool, features_only: bool, out_indices: Sequence[int] | None, options: dict[str, Any]
) -> Foreign:
    """A model that is not ours, by bare timm name or with a prefix.

    Args:
        pretrained: with its maker's weights.
        options: keywords for its maker; ``img_size`` is left out where that has no such keyword.
    Raises:
        UnknownName, TypeError, ValueError, WeightsError: as `create_model`.
    """
    check_prefix(name)
    if parse(name).prefix == "module":
        from foveal.zoo.foreign_module import build as build_other
    else:
        from foveal.zoo.foreign_timm import build as build_other
    return build_other(
        name, pretrained=pretrained, features_only=features_only, out_indices=out_indices, options=options
    )


def accepts(name: str, option: str) -> bool:
    """Whether a keyword may be given to the maker of a model: always, but for a function that does not name it."""
    if parse(name).prefix != "module":
        return True
    from foveal.zoo.foreign_module import find_function, named_options

    return option in named_options(find_function(name))


def hash_of(model: nn.Module) -> str:
    """`state_hash` of a model, "" where it can't have one: meta tensors, lazy parameters, state that is no tensor."""
    try:
        return state_hash(model)
    except (WeightsError, RuntimeError):
        return ""


def without_unknown_size(make: Callable[..., nn.Module], options: dict[str, Any]) -> nn.Module:
    """``make(**options)``, without ``img_size`` where that is no keyword: models of any size need none."""
    try:
        return make(**options)
    except TypeError as error:
        if "img_size" not in options or not re.search(r"unexpected keyword argument 'img_size'", str(error)):
            raise
    return make(**{key: value for key, value in options.items() if key != "img_size"})
