"""Models of timm, by bare name or as ``timm:NAME``, ``hf-hub:…``, ``local-dir:…``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import timm
from huggingface_hub import constants as hub_constants
from torch import nn

from foveal.weights.catalogue import rows, rows_of
from foveal.weights.errors import WeightsError
from foveal.weights.fetch import is_offline
from foveal.zoo import UnknownName, registry
from foveal.zoo.foreign import Foreign, parse, without_unknown_size
from foveal.zoo.labels import labels_for
from foveal.zoo.transforms import from_timm


def build(
    name: str, *, pretrained: bool, features_only: bool, out_indices: Sequence[int] | None, options: dict[str, Any]
) -> Foreign:
    """See `foreign.build`."""
    prefix, arch, _ = parse(name)
    if prefix in ("", "timm") and not timm.is_model(arch):
        known = timm.list_models()
        raise UnknownName("model", arch, known if prefix else dict.fromkeys([*registry.models(), *known]))
    extras = dict(options)
    if features_only:
        extras["features_only"] = True
        if out_indices is not None:
            extras["out_indices"] = out_indices
    model = _create(name, arch, pretrained, extras)
    given = f"timm:{name.removeprefix('timm:')}" if pretrained else ""
    labels = labels_for(getattr(model, "num_classes", None)) if pretrained else ()
    return Foreign(model, options, from_timm(getattr(model, "pretrained_cfg", {})), weights=given, labels=labels)


@contextmanager
def _hub_as_we_are() -> Iterator[None]:
    """Offline, the hub's client looks into its cache alone; else it would ask a dead network for a minute."""
    before = hub_constants.HF_HUB_OFFLINE
    hub_constants.HF_HUB_OFFLINE = before or is_offline()
    try:
        yield
    finally:
        hub_constants.HF_HUB_OFFLINE = before


def _create(name: str, arch: str, pretrained: bool, options: dict[str, Any]) -> nn.Module:
    try:
        with _hub_as_we_are():
            return without_unknown_size(
                partial(timm.create_model, name.removeprefix("timm:"), pretrained=pretrained), options
            )
    except RuntimeError as error:
        if str(error).startswith("Invalid pretrained tag"):
            known = [*timm.list_models(f"{arch}.*", pretrained=True), *(row.name for row in rows_of(arch))]
            raise UnknownName("weight", name.removeprefix("timm:"), known or rows()) from error
        if str(error).startswith("No pretrained weights exist"):
            raise WeightsError(f"{name}: timm has no weights for it; pass weights=FILE") from error
        raise
    except (OSError, ConnectionError) as error:
        ours = " or ".join(f"weights={row.tag!r}" for row in rows_of(arch))
        raise WeightsError(
            f"{name}: timm could not fetch its weights ({type(error).__name__}); pass weights=FILE"
            + (f" or {ours}" if ours else "")
        ) from error
