"""A wheel built from what git tracks holds everything and runs from an empty directory."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_wheel_runs_the_quick_suite_from_an_empty_directory(tmp_path):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    clone = tmp_path / "clone"
    for name in listed:
        source, target = ROOT / name, clone / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(clone)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("foveal-*.whl")
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    for folder in ("kernels", "zoo", "tasks", "weights", "eval"):
        assert f"foveal/{folder}/py.typed" in names
    assert not [n for n in names if n.startswith(("tests/", "kernels/"))]

    environment = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    where = [sys.executable, "-c", "import foveal; print(foveal.__file__)"]
    found = subprocess.run(where, env=environment, cwd=empty, capture_output=True, text=True, check=True)
    assert str(site) in found.stdout
    done = subprocess.run(
        [sys.executable, "-m", "foveal", "eval", "--suite", "quick", "--json"],
        env=environment, cwd=empty, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {r["benchmark"] for r in json.loads(done.stdout)} == {"fashion-mnist-test"}
