"""The cases that we keep, the runner's own honesty, and the released files' wrapper."""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import foveal
from tests.parity import runner
from tests.parity.adapters import ADAPTERS, adapter_for

DATA = Path(__file__).resolve().parents[1] / "data" / "parity"
CASES = runner.find_cases(DATA)


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[name for _, name in CASES])
def test_case(folder, name):
    outcome = runner.check_case(folder, name)
    assert outcome.status == "passed", outcome.text


def test_every_kept_case_is_built_and_every_adapter_has_a_case():
    assert CASES
    assert not [name for _, name in CASES if adapter_for(name) is None]
    for pattern in ADAPTERS:
        assert any(Path(name).match(pattern) for _, name in CASES), pattern


def _run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tests.parity", *map(str, arguments)],
        cwd=DATA.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )


def test_runner_counts_and_exits(tmp_path):
    for name in ("bra_nhwc_k1_w7", "attention_lepe_nchw"):
        for suffix in (".json", ".npz"):
            shutil.copy(DATA / "backbones" / (name + suffix), tmp_path)
    for suffix in (".json", ".npz"):
        shutil.copy(DATA / "backbones" / ("bra_nhwc_k1_w7" + suffix), tmp_path / ("other_system" + suffix))
    fine = _run(tmp_path, "--require", "bra_*")
    assert fine.returncode == 0, fine.stdout + fine.stderr
    assert fine.stdout.splitlines()[-1] == "2 passed, 0 failed, 1 not there"
    assert _run(tmp_path, "--require", "other_*").returncode == 1
    assert "loftr_*: no such case" in _run(tmp_path, "--require", "loftr_*").stdout

    swapped = (tmp_path / "attention_lepe_nchw.npz").read_bytes()
    shutil.copy(DATA / "backbones" / "attention_lepe_nhwc.npz", tmp_path / "attention_lepe_nchw.npz")
    failed = _run(tmp_path)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1] == "1 passed, 1 failed, 1 not there"
    (tmp_path / "attention_lepe_nchw.npz").write_bytes(swapped)


def test_released_wrapper_loads_and_gives_the_original_s_logits(tmp_path):
    case = runner.parity.load_case("biformer_tiny_224", DATA / "backbones")
    path = tmp_path / "biformer_tiny_best.pth"
    torch.save({"model": runner.weights_of(case), "epoch": 299, "args": argparse.Namespace(lr=1e-3)}, path)
    model = foveal.create_model("biformer_tiny", weights=path).eval()
    with torch.no_grad():
        logits = model(runner.inputs_of(case)[""])
    report = runner.parity.check({"logits": logits}, case)
    assert report.ok, str(report)
    assert model.foveal.weights == str(path)
