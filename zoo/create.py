"""The one way from a name to a model: ours first, then timm's, with weights from a tag, a file or a folder."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import timm
from torch import nn

from foveal.weights.catalogue import Preprocessing, Row, from_json, rows, rows_of
from foveal.weights.errors import WeightsError
from foveal.weights.loading import LoadReport
from foveal.weights.loading import load_weights as load_file
from foveal.weights.reading import find_file, read_checkpoint
from foveal.weights.places import default_row, file_of, row_for
from foveal.weights.saving import save as save_file
from foveal.zoo import UnknownName, registry
from foveal.zoo.features import FeatureNet
from foveal.zoo.transforms import from_timm

log = logging.getLogger("foveal")
RANDOM = "random weights"


@dataclass(frozen=True)
class ModelInfo:
    """What a model is, carried by it as ``model.foveal``.

    Attributes:
        name: the name it was created by, without tag.
        options: the arguments it was built with.
        preprocessing: the input its weights expect.
        weights: row name, file or "random weights".
        sha256: of the weights' file, "" for random weights.
        labels: class names, when the weights came with them.
    """

    name: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    weights: str = RANDOM
    sha256: str = ""
    labels: tuple[str, ...] = field(default=(), repr=False)


def create_model(
    name: str,
    *,
    pretrained: bool = False,
    weights: str | Path | None = None,
    features_only: bool = False,
    out_indices: Sequence[int] | None = None,
    img_size: int | tuple[int, int] | None = None,
    strict: bool = True,
    ema: bool = False,
    **options: Any,
) -> nn.Module:
    """A model by name, in training mode, as timm's ``create_model``.

    Args:
        name: one of `list_models()`, or any timm name; ``name.tag`` names the weights of ``pretrained=True``.
        pretrained: load the weights of the tag, or the default ones.
        weights: a tag, a file or a folder instead; with ``pretrained`` it is a TypeError.
        features_only: give a list of feature maps instead of logits.
        out_indices: which maps; negative ones count from the end.
        img_size: input size; models of any size ignore it but for their preprocessing.
        strict, ema: see `load_weights`.
        options: settings of the family (``num_classes``, ``in_chans``, ``drop_path_rate``, …).
    Raises:
        UnknownName: with the nearest names.
        TypeError: on an unknown option, or both pretrained and weights.
        ValueError: on a setting that can't be.
        WeightsError: when weights are missing, unsafe or do not fit.

    >>> model = create_model("biformer_nano", num_classes=5, in_chans=1)
    >>> model.foveal.weights
    'random weights'
    """
    if pretrained and weights is not None:
        raise TypeError("create_model: give either pretrained=True or weights=, not both")
    arch, _, tag = name.partition(".")
    ours = registry.is_model(arch)
    row: Row | None = None
    if pretrained:
        row = rows().get(name) if tag else (default_row(arch) if ours else None)
        if row is None and tag and ours:
            raise UnknownName("weight", name, [r.name for r in rows_of(arch)] or rows())
    elif weights is not None:
        row = row_for(arch, str(weights))
    source = file_of(row) if row else (None if weights is None else weights)
    if row is not None:
        options = {**row.options, **options}
    if img_size is not None:
        options["img_size"] = img_size
    if ours:
        model = registry.build(arch, **options)
        preprocessing = _own_preprocessing(arch, options)
    else:
        model = _from_timm(arch if row else name, pretrained and row is None, features_only, out_indices, options)
        preprocessing = from_timm(getattr(model, "pretrained_cfg", {}))
    loaded = RANDOM if ours or not pretrained else f"timm:{name}"
    model.foveal = ModelInfo(arch, options, preprocessing, loaded)  # type: ignore[assignment]
    if source is not None:
        load_weights(model, source, strict=strict, ema=ema)
    if features_only and ours:
        info = model.foveal
        model = FeatureNet(model, out_indices)
        model.foveal = info
    return model


def _own_preprocessing(arch: str, options: dict[str, Any]) -> Preprocessing:
    """What the known weights of a model agree on, else timm's ImageNet defaults at the model's size."""
    known = {row.preprocessing for row in rows_of(arch)}
    spec = known.pop() if len(known) == 1 else None
    channels = options.get("in_chans", 3)
    size = options.get("img_size", spec.size if spec else registry.variant(arch).get("img_size", 224))
    size = size if isinstance(size, int) else max(size)
    if spec is None or len(spec.mean) != channels:
        spec = from_timm({"input_size": (channels, size, size)})
    return replace(spec, size=size)


def _from_timm(
    name: str, pretrained: bool, features_only: bool, out_indices: Sequence[int] | None, options: dict[str, Any]
) -> nn.Module:
    if ":" not in name and not timm.is_model(name):
        raise UnknownName("model", name.partition(".")[0], list(dict.fromkeys([*registry.models(), *timm.list_models()])))
    if features_only:
        options = {**options, "features_only": True, "out_indices": out_indices}
    try:
        return timm.create_model(name, pretrained=pretrained, **options)
    except (OSError, ConnectionError) as error:
        raise WeightsError(f"{name}: timm could not fetch its weights ({type(error).__name__}); pass weights=FILE") from error


def load_weights(model: nn.Module, source: str | Path, *, strict: bool = True, ema: bool = False) -> LoadReport:
    """Loads a tag, a file or a folder into a model and records what it came from in ``model.foveal``.

    Wrappers (``model``, ``state_dict``, …) and prefixes are removed, input channels and size-bound tables adapted,
    a classifier with another class count left fresh; the report says all of it.

    Args:
        source: a tag of the model, a file (safetensors or a torch checkpoint) or a folder with one.
        strict: missing, left-over or misfit entries are an error before anything is copied.
        ema: take averaged weights where a file holds both.
    Raises:
        WeightsError: when the file is missing, unsafe or does not fit.
    """
    info: ModelInfo | None = getattr(model, "foveal", None)
    row = row_for(info.name, str(source)) if info else None
    path = file_of(row) if row else _existing(source, info)
    report = load_file(model, path, strict=strict, ema=ema)
    if row and row.sha256 and row.sha256 != report.sha256:
        raise WeightsError(f"{path}: the sha256 is {report.sha256}, but {row.name} has {row.sha256}")
    if info is not None:
        row = row or next((r for r in rows_of(info.name) if r.sha256 and r.sha256 == report.sha256), None)
        model.foveal = _after_loading(info, row, report)  # type: ignore[assignment]
    return report


def _existing(source: str | Path, info: ModelInfo | None) -> Path:
    if str(source).startswith(("http://", "https://")):
        raise WeightsError(f"{source}: fetching from an address is not built yet; download the file and pass its path")
    path = Path(source).expanduser()
    if not path.exists() and info is not None and not path.suffix and path.parent == Path("."):
        tags = ", ".join(r.name for r in rows_of(info.name)) or "none"
        raise WeightsError(f"{source}: neither a file nor weights of {info.name} (known: {tags})")
    return path


def _after_loading(info: ModelInfo, row: Row | None, report: LoadReport) -> ModelInfo:
    saved = json.loads(report.metadata.get("foveal", "{}"))
    if row is not None:
        spec, labels = row.preprocessing, row.labels
    elif saved:
        spec, labels = Preprocessing(**from_json(saved["preprocessing"])), tuple(saved["labels"])
    else:
        spec, labels = info.preprocessing, ()
        if len({r.preprocessing for r in rows_of(info.name)}) != 1:
            log.warning("%s: its preprocessing is unknown, taken to be %s", report.source, spec)
    channels = len(info.preprocessing.mean)
    if len(spec.mean) != channels:  # the model was built for other channels than the weights
        spec = replace(spec, mean=info.preprocessing.mean, std=info.preprocessing.std)
    if "img_size" in info.options:
        spec = replace(spec, size=info.preprocessing.size)
    if any(key.rpartition(".")[2] in ("weight", "bias") for key in report.skipped):
        labels = ()  # the classifier is fresh: its outputs are not those classes
    return replace(
        info,
        preprocessing=spec,
        weights=row.name if row else report.source,
        sha256=report.sha256,
        labels=labels,
    )


def _facts(model: nn.Module) -> dict[str, Any]:
    info: ModelInfo | None = getattr(model, "foveal", None)
    if info is None:
        return {}
    return {
        "name": info.name,
        "options": info.options,
        "preprocessing": asdict(info.preprocessing),
        "labels": info.labels,
    }


def save(model: nn.Module, path: str | Path) -> Path:
    """Writes a model to a safetensors file that `load` turns into the same model again; tied tensors stay tied.

    The file is written aside and renamed, so that a crash leaves the old one.
    """
    path, facts = Path(path).expanduser(), _facts(model)
    save_file(model, path, {"foveal": json.dumps(facts)} if facts else None)
    return path


def save_pretrained(model: nn.Module, folder: str | Path) -> Path:
    """Writes ``model.safetensors`` and a readable ``config.json`` into a folder; `load` and ``weights=`` take it."""
    folder = Path(folder).expanduser()
    save(model, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_facts(model), indent=1) + "\n", encoding="utf-8")
    return folder


def load(path: str | Path) -> nn.Module:
    """The model that `save` or `save_pretrained` wrote.

    Raises:
        WeightsError: when the file does not say which model it holds.
    """
    _, metadata = read_checkpoint(find_file(Path(path).expanduser()))
    facts = json.loads(metadata.get("foveal", "{}"))
    if not facts:
        raise WeightsError(
            f"{path}: does not say which model it holds; create the model by name and pass weights={str(path)!r}"
        )
    return create_model(facts["name"], weights=path, **from_json(facts["options"]))
