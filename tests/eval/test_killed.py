"""A run through the real command line, killed with SIGKILL in the middle and started again."""

import json
import signal
import subprocess
import sys
import time

import numpy as np

import foveal
from foveal.eval.store import Store

N = 3000


def test_killed_run_goes_on_and_gives_the_same_result(tiny, tmp_path):
    foveal.save(tiny, tmp_path / "tiny.safetensors")
    command = [sys.executable, "-m", "foveal", "eval", str(tmp_path / "tiny.safetensors"), "--threads", "1"]
    command += [
        "--bench",
        "fashion-mnist-test",
        "--batch-size",
        "4",
        "--limit",
        str(N),
        "--output",
        str(tmp_path / "r"),
    ]

    def parts():
        return sorted((tmp_path / "r").rglob("part-*.jsonl"))

    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as killed:
        deadline = time.monotonic() + 100
        while not parts():
            assert time.monotonic() < deadline
            assert killed.poll() is None, killed.stderr.read().decode()
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
    assert killed.returncode == -signal.SIGKILL
    (folder,) = {path.parent for path in parts()}
    assert not (folder / "result.json").exists()
    kept = [file for part in parts() for file in (part, part.with_suffix(".safetensors"))]
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept}
    stored = Store(folder).ids()
    assert 0 < len(stored) < N

    subprocess.run(command, check=True, capture_output=True, timeout=200)
    assert {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in kept} == before
    ids = [json.loads(line)["id"] for part in parts() for line in part.read_text().splitlines()[1:]]
    assert sorted(ids) == [f"{i:05d}" for i in range(N)]  # each exactly once

    model, options = foveal.load(tmp_path / "tiny.safetensors"), {"threads": 1, "batch_size": 4, "limit": N}
    foveal.evaluate(model, "fashion-mnist-test", results=tmp_path / "whole", **options)
    (other,) = {path.parent for path in (tmp_path / "whole").rglob("result.json")}
    assert other.name == folder.name
    results = [json.loads((place / "result.json").read_text()) for place in (folder, other)]
    assert results[0].pop("run")["computed_now"] == N - len(stored)
    assert results[1].pop("run")["computed_now"] == N
    assert results[0] == results[1]
    (one, logits), (two, others) = (Store(place).read() for place in (folder, other))
    assert all(np.array_equal(logits["logits"][one[i]["row"]], others["logits"][two[i]["row"]]) for i in ids)
