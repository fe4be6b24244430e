"""Runs parity cases: weights and inputs drawn from their rules, our outputs compared with the original's."""

import math
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.append(str(HERE))  # task_inputs imports parity by its bare name

import parity  # noqa: E402
import task_inputs  # noqa: E402

from tests.parity.adapters import adapter_for, run  # noqa: E402


@dataclass(frozen=True)
class Outcome:
    """passed, failed or not there; the worst difference in units of the tolerance; what is wrong."""

    name: str
    status: str
    worst: float
    text: str


def find_cases(root: Path) -> list[tuple[Path, str]]:
    """(folder, name) of every case in a tree: a json file with an npz file of the same name."""
    return [(p.parent, p.stem) for p in sorted(root.rglob("*.json")) if p.with_suffix(".npz").is_file()]


def inputs_of(case: dict[str, Any]) -> dict[str, Tensor]:
    """The inputs by name; a single unnamed one gets the name ""."""
    if "inputs" in case:
        return {k: torch.from_numpy(np.asarray(task_inputs.build(rule))) for k, rule in case["inputs"].items()}
    drawn = parity.case_input(case)
    if isinstance(drawn, Tensor):
        return {"": drawn}
    scaled = {k: v * case.get("input_scale", {}).get(k, 1) for k, v in drawn.items()}
    given = {
        k: torch.tensor(g["values"], dtype=getattr(torch, g["dtype"])) for k, g in case.get("given_inputs", {}).items()
    }
    return {**scaled, **given}


def weights_of(case: dict[str, Any]) -> dict[str, Tensor]:
    """The filled weights by the original's names; empty where a case has none."""
    if not case["state_dict"] or "weight_seed" not in case:
        return {}
    filled = parity.case_weights(case)
    if parity.digest(filled) != case.get("weights_crc32", parity.digest(filled)):
        raise AssertionError("numpy draws another random stream than the case was made with")
    return {k: v * case.get("weight_scale", {}).get(k, 1) for k, v in filled.items()}


def check_case(folder: Path, name: str) -> Outcome:
    """Builds, fills, runs and compares one case."""
    adapter = adapter_for(name)
    if adapter is None:
        return Outcome(name, "not there", math.nan, "")
    case = parity.load_case(name, folder)

    def fill(module: nn.Module) -> nn.Module:
        problems = parity.compare_keys(module.state_dict(), case) + parity.compare_norm_eps(module, case)
        count = sum(p.numel() for p in module.parameters())
        if case.get("parameters") not in (None, count):
            problems.append(f"{count} parameters, the original has {case['parameters']}")
        if problems:
            raise AssertionError("; ".join(problems[:5]))
        module.load_state_dict(weights_of(case), strict=False)
        return module.eval()

    try:
        outputs = run(case, adapter, fill, inputs_of(case))
        zeros = {k: outputs.pop(k) for k in list(outputs) if k in case.get("zero_outputs", {})}
        wrong = [k for k, t in zeros.items() if list(t.shape) != case["zero_outputs"][k] or t.bool().any()]
        absent = sorted(set(case["outputs"]) - set(outputs))
        report = parity.check(outputs, case, rtol=case.get("rtol", case.get("suggested_rtol", 1e-4)))
        good = report.ok and not wrong and not absent
        notes = [f"{k}: has to be zeros" for k in wrong] + [f"{k}: not given" for k in absent]
        return Outcome(name, "passed" if good else "failed", report.worst, "\n".join([*notes, *report.lines]))
    except Exception as error:  # a case that breaks is a failed case, the others still run
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return Outcome(name, "failed", math.inf, text)
