"""A model as a file that runs without foveal: ONNX, or a program of torch.export, for any batch and picture size.

The file is checked before it is there: it is written aside, read back, run on sizes and batches that it was not traced
at and compared with the model; what differs is refused.
"""

import contextlib
import copy
import importlib
import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sympy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental import _config as tracing
from torch.utils._pytree import tree_leaves

from foveal import __version__
from foveal.kernels._operator import forced
from foveal.kernels.registry import list_operators
from foveal.weights.catalogue import Preprocessing
from foveal.weights.saving import state_hash
from foveal.zoo.transforms import from_timm

AXES = {"batch": 0, "height": 2, "width": 3}
SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}
INPUT, OUTPUT = "image", "output"
TOLERANCE = 1e-4  # of the outputs' standard deviation
PATHS = {"bilevel_routing": "gather", "softmax": "sdpa"}  # serve every size by the same steps, as every reference does
LARGEST = (1 << 31) - (1 << 24)  # bytes; an ONNX file is one message of at most 2 GiB

Run = Callable[[Tensor], list[Tensor]]


def export(
    model: nn.Module,
    path: str | Path,
    *,
    format: str = "onnx",
    dynamic: Sequence[str] = tuple(AXES),
) -> Path:
    """Writes a model in eval mode to a file that runs without foveal; the model itself stays as it is.

    The input is named ``image``, (batch, channels, height, width) float32, normalised as the metadata say. These are
    ``foveal.*`` properties of an ONNX file, the extra file ``foveal.json`` of a torch one: model, weights and their
    hash (`state_hash`), preprocessing, labels, what varies and the smallest size traced for.

    Args:
        path: of the file, usually ``*.onnx`` or ``*.pt2``; there whole or not at all.
        format: "onnx" (for onnxruntime and others) or "torch" (for ``torch.export.load``).
        dynamic: which of batch, height and width may differ from run to run; the others are 1 and the model's size.
    Returns:
        The path.
    Raises:
        ValueError: when the model can't be traced so, or the file's answers differ from the model's.
        ImportError: when the packages that write ONNX are not installed.
    """
    path, dynamic = Path(path).expanduser(), tuple(dynamic)
    if format not in SUFFIXES:
        raise ValueError(f"export: format is one of {', '.join(SUFFIXES)}; got {format!r}")
    if not set(dynamic) <= AXES.keys():
        raise ValueError(f"export: dynamic names some of {', '.join(AXES)}; got {dynamic}")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder; give the path of the file to write")
    if format == "onnx":
        _need("onnx", "onnxscript", "onnxruntime")
    facts, spec = _facts(model, dynamic)
    name = facts["model"]
    frozen = _frozen(model, name, format)
    cases = _cases(frozen, name, spec, dynamic)
    program = _trace(frozen, name, spec, dynamic)
    facts["smallest"] = _smallest(program, name)

    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{uuid.uuid4().hex}.part{SUFFIXES[format]}")
    try:
        if format == "onnx":
            _write_onnx(program, aside, facts, outputs=len(cases[0][1]))
            run = _onnx_run(aside)
        else:
            _write_torch(program, aside, facts)
            run = _torch_run(aside)
        _check(run, cases, name)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    return path


def export_by_name(name: str, *, format: str, weights: str = "", output: Path | None = None, dynamic: str) -> Path:
    """The command `foveal export`: a model by name, or a file that `save` wrote, to ``NAME.onnx`` or ``NAME.pt2``.

    Args:
        weights: "" for the name's own, "random", a tag, a file or a folder.
        output: another path.
        dynamic: axes with commas between, or "none".
    Raises:
        ValueError: as `export`, and when packages are missing.
    """
    from foveal.eval.models import is_path, model_for

    if format not in SUFFIXES:
        raise ValueError(f"--format is one of {', '.join(SUFFIXES)}; got {format!r}")
    axes = () if dynamic == "none" else tuple(axis.strip() for axis in dynamic.split(","))
    stem = Path(name).stem if is_path(name) else re.sub(r"[^\w.-]+", "_", name)
    try:
        return export(model_for(name, weights), output or Path(stem + SUFFIXES[format]), format=format, dynamic=axes)
    except ImportError as error:
        raise ValueError(str(error)) from error


def _need(*packages: str) -> None:
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ImportError(
                f"export: writing ONNX needs the package {package}: pip install 'foveal[export]'"
            ) from error


def _facts(model: nn.Module, dynamic: tuple[str, ...]) -> tuple[dict[str, Any], Preprocessing]:
    """What the file says about itself, and the input that the model expects."""
    info = getattr(model, "foveal", None)
    spec = info.preprocessing if info else from_timm(getattr(model, "pretrained_cfg", {}))
    facts = {
        "model": info.name if info else type(model).__name__,
        "weights": info.weights if info else "",
        "weights_hash": state_hash(model),
        "preprocessing": asdict(spec),
        "labels": list(info.labels) if info else [],
        "dynamic": list(dynamic),
        "version": __version__,
    }
    return facts, spec


def _frozen(model: nn.Module, name: str, format: str) -> nn.Module:
    """A copy to trace: eval mode, on the CPU, no gradients."""
    tensors = [t for t in model.state_dict().values() if isinstance(t, Tensor)]
    other = {t.dtype for t in tensors if t.is_floating_point()} - {torch.float32}
    if other:
        raise ValueError(f"{name}: float32 is what gets exported, this model holds {other.pop()}; call .float() first")
    size = sum(t.numel() * t.element_size() for t in tensors)
    if format == "onnx" and size > LARGEST:
        raise ValueError(f"{name}: {size / 2**30:.1f} GiB of weights, an ONNX file holds 2 GiB; use format='torch'")
    return copy.deepcopy(model).cpu().eval().requires_grad_(False)


def _picture(batch: int, channels: int, height: int, width: int) -> Tensor:
    """Soft blobs with grain: as in a photograph, regions differ by far more than rounding does."""
    draw = torch.Generator().manual_seed(0)
    blobs = F.interpolate(torch.randn(batch, channels, 9, 9, generator=draw), (height, width), mode="bicubic")
    return blobs + 0.3 * torch.randn(batch, channels, height, width, generator=draw)


def _cases(
    model: nn.Module, name: str, spec: Preprocessing, dynamic: tuple[str, ...]
) -> list[tuple[Tensor, list[Tensor]]]:
    """Inputs and the model's answers: at its own size, at a larger one, and at the least divisible one it takes."""
    height, width = spec.shape
    own = {"batch": 1, "height": height, "width": width}
    run = _eager(model)

    def case(batch: int, height: int, width: int) -> tuple[Tensor, list[Tensor]]:
        asked = {"batch": batch, "height": height, "width": width}
        batch, height, width = (asked[axis] if axis in dynamic else own[axis] for axis in AXES)
        x = _picture(batch, len(spec.mean), height, width)
        return x, run(x)

    cases = [case(**own)]
    try:
        cases.append(case(3, height + -(-height // 7), width + -(-3 * width // 7)))
    except Exception as error:
        raise ValueError(
            f"{name}: runs at {height}x{width} but not at other sizes ({_reason(error)}), so these can't vary; "
            "export it with dynamic=('batch',), --dynamic batch"
        ) from error
    for step in (1, 2, 4, 8, 16, 32):
        with contextlib.suppress(Exception):  # a model of patches takes whole ones
            cases.append(case(2, (height * 4 // 5 // step | 1) * step, (width * 3 // 5 // step | 1) * step))
            break
    return cases


def _eager(model: Callable[[Tensor], Any]) -> Run:
    def run(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return tree_leaves(model(x))

    return run


def _trace(model: nn.Module, name: str, spec: Preprocessing, dynamic: tuple[str, ...]) -> ExportedProgram:
    """The program, traced at a size and batch that no map inside leaves at 1."""
    sizes = {"batch": 1, "height": spec.shape[0], "width": spec.shape[1]}
    batch, height, width = (n * (i + 2) if axis in dynamic else n for i, (axis, n) in enumerate(sizes.items()))
    x = torch.zeros(batch, len(spec.mean), height, width)
    varies = {AXES[axis]: Dim.DYNAMIC for axis in dynamic}
    paths = {operator: PATHS.get(operator, "reference") for operator in list_operators()}
    # oblivious: a size of 1 is not another program; deferred: what torch asks of layouts is asked again at run time
    try:
        with forced(**paths), tracing.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            program = torch.export.export(
                model, (x,), dynamic_shapes=(varies or None,), prefer_deferred_runtime_asserts_over_guards=True
            )
    except Exception as error:
        hint = "; dynamic=('batch',) may work (--dynamic batch)" if {"height", "width"} & {*dynamic} else ""
        what = f" with any {', '.join(dynamic)}" if dynamic else ""
        raise ValueError(f"{name}: torch.export can't follow it{what} ({_reason(error)}){hint}") from error
    program.example_inputs = None  # megabytes of zeros
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths on this machine
    return program


def _symbols(program: ExportedProgram) -> dict[str, Any]:
    """The symbol of each axis that varies."""
    (image,) = program.graph_signature.user_inputs
    shape = next(node.meta["val"].shape for node in program.graph.nodes if node.name == image)
    return {axis: shape[i].node.expr for axis, i in AXES.items() if isinstance(shape[i], torch.SymInt)}


def _smallest(program: ExportedProgram, name: str) -> dict[str, int]:
    """The smallest height and width that the program was traced for.

    Raises:
        ValueError: when there is a largest one.
    """
    found = {}
    for axis, symbol in _symbols(program).items():
        allowed = program.range_constraints.get(symbol)
        if allowed is None or axis == "batch":
            continue
        if isinstance(allowed.upper, sympy.Integer):
            raise ValueError(
                f"{name}: above a {axis} of {allowed.upper} its code takes another way, it can't be exported"
            )
        found[axis] = max(1, int(allowed.lower))
    return found


def _write_torch(program: ExportedProgram, path: Path, facts: dict[str, Any]) -> None:
    torch.export.save(program, path, extra_files={"foveal.json": json.dumps(facts)})


def _torch_run(path: Path) -> Run:
    return _eager(torch.export.load(path).module())


def _write_onnx(program: ExportedProgram, path: Path, facts: dict[str, Any], outputs: int) -> None:
    import onnx

    names = [OUTPUT] if outputs == 1 else [f"{OUTPUT}_{i}" for i in range(outputs)]
    try:
        made = torch.onnx.export(
            program, (), dynamo=True, verbose=False, input_names=[INPUT], output_names=names, external_data=False
        )
    except Exception as error:
        raise ValueError(f"{facts['model']}: can't be written as ONNX ({_reason(error)})") from error
    assert made is not None
    proto = made.model_proto
    graph = proto.graph
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")  # stack traces, with paths on this machine
    symbols = {str(symbol): axis for axis, symbol in _symbols(program).items()}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = re.sub(r"\w+", lambda m: symbols.get(m[0], m[0]), dim.dim_param)
    notes = {f"foveal.{k}": v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
    onnx.helper.set_model_props(proto, notes)
    onnx.save_model(proto, path)


def _onnx_run(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised as well
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda x: [torch.as_tensor(y) for y in session.run(None, {INPUT: x.numpy()})]


def _check(run: Run, cases: Iterable[tuple[Tensor, list[Tensor]]], name: str) -> None:
    """Runs the file on the cases.

    Raises:
        ValueError: when it fails, or differs by more than the tolerance.
    """
    for x, expected in cases:
        where = f"{name}: at {'x'.join(map(str, x.shape))} the exported file"
        try:
            found = run(x)
        except Exception as error:
            raise ValueError(f"{where} fails ({_reason(error)}); nothing was written") from error
        worst = max((_difference(e, f) for e, f in zip(expected, found, strict=True)), default=0.0)
        if not worst <= TOLERANCE:
            raise ValueError(
                f"{where} differs from the model by {worst:.1e} of its outputs' deviation, "
                f"{TOLERANCE:.0e} is allowed; nothing was written"
            )


def _difference(expected: Tensor, found: Tensor) -> float:
    """The largest difference over the standard deviation of what is expected; inf where they can't be compared."""
    if expected.shape != found.shape or expected.isnan().any() or found.isnan().any():
        return float("inf")
    if not expected.numel():
        return 0.0
    expected, found = expected.double(), found.double()
    spread = float(expected.std(correction=0)) or float(expected.abs().max()) or 1.0
    return float((expected - found).abs().max()) / spread


def _reason(error: BaseException) -> str:
    """The first line of the error that started it all."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
