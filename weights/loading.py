"""Weights from a file into a model: strict unless asked otherwise, and with a report of what was done."""

import difflib
import logging
from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor, nn

from foveal.weights.adapting import Shapes, adapt
from foveal.weights.errors import WeightsError
from foveal.weights.key_maps import KeyMap
from foveal.weights.places import sha256_of
from foveal.weights.reading import find_file, read_checkpoint

_logger = logging.getLogger("foveal")
_DERIVED = ("relative_position_index", "attn_mask")  # buffers that a model computes from its size


@dataclass(frozen=True)
class LoadReport:
    """What `load_weights` did, by the model's names.

    `adapted` and `skipped` map a name to (shape in the file, shape in the model): the first were changed to fit and
    loaded, the second keep the model's values. `dropped` are entries of the file that the model has no use for: a head
    it does not have, tables it computes itself. `missing` keep the model's values, `unexpected` were not used.
    """

    source: str
    sha256: str
    loaded: int
    adapted: Shapes
    skipped: Shapes
    dropped: list[str]
    missing: list[str]
    unexpected: list[str]
    metadata: dict[str, str]

    def __str__(self) -> str:
        lines = [f"{self.loaded} tensors from {self.source} (sha256 {self.sha256[:12]}…)"]
        for kind in ("adapted", "skipped", "dropped", "missing", "unexpected"):
            if names := getattr(self, kind):
                shapes = names if isinstance(names, dict) else {}
                shown = [f"{n} {shapes[n][0]} -> {shapes[n][1]}" if n in shapes else n for n in list(names)[:4]]
                lines.append(f"  {len(names)} {kind}: {', '.join(shown)}{', …' if len(names) > 4 else ''}")
        return "\n".join(lines)


@torch.no_grad()
def load_weights(
    model: nn.Module,
    source: str | PathLike[str],
    *,
    strict: bool = True,
    ema: bool = False,
    key_map: KeyMap | None = None,
) -> LoadReport:
    """Load a weights file, or the one in a folder, into the model; its dtype and device stay.

    The file's wrappers are opened (`unwrap`) and its tensors fitted to the model (`adapt`): a classifier for another
    number of classes is left as it is in the model and listed under `skipped`. The model may be in DataParallel, in
    torch.compile or in timm's feature extractor; the last need not use all of the file.

    Args:
        strict: False loads what fits and lists the rest in the report and the log; it is never silent.
        ema: take the file's EMA weights where it has them.
        key_map: turns the file's names into the model's, see `key_maps`.
    Raises:
        WeightsError: when the file is unreadable, or, in strict mode, does not fit; the model is unchanged then.
    """
    file = find_file(source)
    target, is_part = _inside(model)
    own = {name: tensor for name, tensor in target.state_dict().items() if isinstance(tensor, Tensor)}
    state, metadata = read_checkpoint(file, ema=ema, wanted=own)
    if key_map is not None:
        state = key_map(state)
    if is_part:  # timm's FeatureListNet has "stages_0" for "stages.0"
        flat = {name.replace(".", "_"): name for name in own}
        state = {flat.get(name.replace(".", "_"), name): tensor for name, tensor in state.items()}
    derived = [name for name in state if name.rpartition(".")[2] in _DERIVED]
    try:
        fit = adapt({name: tensor for name, tensor in state.items() if name not in derived}, target)
    except WeightsError as error:
        raise WeightsError(f"{_end(file)}: {error}") from error

    _refuse_other_numbers(_end(file), fit.state, own)
    unexpected = [name for name in fit.state if name not in own]
    loadable = {name: tensor for name, tensor in fit.state.items() if name in own}
    missing = _missing(own, {*fit.state, *fit.skipped, *fit.unfit})
    if is_part:
        derived, unexpected = derived + unexpected, []
    if strict and (missing or unexpected or fit.unfit):
        raise WeightsError(_misfit(_end(file), target, len(own), len(loadable), missing, unexpected, fit.unfit))

    target.load_state_dict(loadable, strict=False)
    _tie(target, loadable)
    report = LoadReport(
        source=str(file),
        sha256=sha256_of(file),
        loaded=len(loadable),
        adapted=fit.adapted,
        skipped=fit.skipped | fit.unfit,
        dropped=derived + fit.dropped,
        missing=missing,
        unexpected=unexpected,
        metadata=metadata,
    )
    _log(report)
    return report


def _refuse_other_numbers(source: str, state: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Whole or complex numbers in place of floating ones would be cast to garbage without a word."""
    for name, tensor in state.items():
        if name in own and own[name].is_floating_point() and not tensor.is_floating_point():
            raise WeightsError(
                f"{source}: {name} holds {tensor.dtype}, the model needs floating numbers; is this a quantised file?"
            )


def _inside(model: nn.Module) -> tuple[nn.Module, bool]:
    """The model inside DataParallel, torch.compile and timm's feature extractors; whether it is only part of one."""
    is_part = False
    while True:
        # timm's extractors know their features and, unlike its models, have no other way forward.
        is_part = is_part or (hasattr(model, "feature_info") and not hasattr(model, "forward_features"))
        first = {name.partition(".")[0] for name in model.state_dict()}
        if hasattr(type(model), "remap_keys") or first not in ({"module"}, {"_orig_mod"}, {"model"}):
            return model, is_part
        model = model.get_submodule(first.pop())


def _missing(own: dict[str, Tensor], given: set[str]) -> list[str]:
    def place(tensor: Tensor) -> tuple[object, ...]:
        return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()

    tied = {place(own[name]) for name in given if name in own}
    optional = ("num_batches_tracked", *_DERIVED)
    return [
        name
        for name, tensor in own.items()
        if name not in given and name.rpartition(".")[2] not in optional and place(tensor) not in tied
    ]


def _tie(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Make one parameter of those that are one tensor in the file, as `save` writes them."""
    params = dict(model.named_parameters(remove_duplicate=False))
    first: dict[int, nn.Parameter] = {}
    for name, tensor in state.items():
        if name in params and first.setdefault(id(tensor), params[name]) is not params[name]:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, first[id(tensor)])
            _logger.info("%s is tied again, as in the file", name)


def _misfit(
    source: str, model: nn.Module, total: int, agreeing: int, missing: list[str], unexpected: list[str], shapes: Shapes
) -> str:
    text = (
        f"{source} does not fit {type(model).__name__}, which is unchanged: {agreeing} of the model's {total} tensors "
        f"agree, {len(missing)} are missing, {len(unexpected)} are unexpected, {len(shapes)} have another shape."
    )
    if agreeing * 2 < total:
        text += " This looks like the checkpoint of another model."
    lines = [f"another shape: {_end(n, 60)}, {f} in the file, {m} here" for n, (f, m) in list(shapes.items())[:4]]
    for kind, names, others in (("missing", missing, unexpected), ("unexpected", unexpected, missing)):
        for name in names[:3]:
            near = difflib.get_close_matches(name, others, n=1)
            lines.append(f"{kind}: {_end(name, 60)}" + (f" (near: {_end(near[0], 60)})" if near else ""))
    for line in lines:
        if len(text) + len(line) < 1400:
            text += f"\n  {line}"
    return text


def _end(text: object, length: int = 200) -> str:
    # The end of a path or a name says the most; its control characters are not to reach a terminal.
    return ascii(str(text))[1:-1][-length:]


def _log(report: LoadReport) -> None:
    for name, (file, model) in report.adapted.items():
        _logger.info("%s: %s was made from %s of the file", name, model, file)
    for kind in ("skipped", "missing", "unexpected"):
        if names := getattr(report, kind):
            _logger.warning("%s: %d tensors %s: %s", report.source, len(names), kind, names)
