"""Several processes, shards and time-outs through the real command line: figures equal to one process's, to the bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import foveal
from foveal.eval.predicting import Plan, blocks_of
from foveal.eval.processes import Share, parse_shard
from foveal.eval.scoring import merge
from foveal.eval.timeouts import at_most

SETTINGS = {"in_chans": 1, "num_classes": 10, "depths": (1, 1, 1), "dims": (8, 16, 32), "num_heads": (1, 2, 4)}
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model file and 7 pictures in 10 folders of classes, some of them empty."""
    root = tmp_path_factory.mktemp("processes")
    foveal.save(foveal.create_model("biformer_nano", **SETTINGS), root / "model.safetensors")
    draw = np.random.default_rng(0)
    for label in range(10):
        (root / "data" / f"class{label}").mkdir(parents=True)
    for i in range(7):
        picture = Image.fromarray(draw.integers(0, 255, (28, 28), dtype=np.uint8))
        picture.save(root / "data" / f"class{i % 4}" / f"{i}.png")
    return root


def command(place, output, *more, processes=1, data="folder"):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
    where = ["--bench", "folder", "--data", str(place / "data"), "--batch-size", "2"]
    if data == "fashion":
        where = ["--bench", "fashion-mnist-test", "--batch-size", "4", "--limit", "1500"]
    start = start if processes > 1 else [sys.executable, "-m"]
    model = str(place / "model.safetensors")
    return [*start, "foveal", "eval", model, *where, "--threads", "1", "--output", str(output), *more]


def run(*arguments, **more):
    done = subprocess.run(command(*arguments, **more), env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def figures(output):
    (path,) = Path(output).rglob("result.json")
    result = json.loads(path.read_text())
    return {name: value for name, value in result.items() if name not in ("run", "versions", "weights")}


def stored(output):
    parts = [path.read_text() for path in Path(output).rglob("part-*.jsonl")]
    return [json.loads(line)["id"] for text in parts for line in text.splitlines()[1:]]


def test_bc50_padded_duplicates_across_processes(place, tmp_path):
    """Seven items on one, two and three processes: nothing is padded, nothing counted twice, equal to the bit."""
    run(place, tmp_path / "1")
    for processes in (2, 3):
        done = run(place, tmp_path / str(processes), "--json", processes=processes)
        assert len(json.loads(done.stdout)) == 1  # the first process alone speaks
        assert len(stored(tmp_path / str(processes))) == 7
        assert figures(tmp_path / str(processes)) == figures(tmp_path / "1")


def test_shards_merged(place, tmp_path):
    run(place, tmp_path / "whole")
    first = run(place, tmp_path / "a", "--shard", "1/2")
    assert "of 7 items are stored" in first.stderr
    with pytest.raises(foveal.eval.benchmark.DataMissing, match="items are not computed yet"):
        merge([tmp_path / "a"], tmp_path / "early", data_root=place / "data")
    run(place, tmp_path / "b", "--shard", "2/2")
    (result,) = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c", data_root=place / "data")
    assert sorted(stored(tmp_path / "a") + stored(tmp_path / "b")) == sorted(stored(tmp_path / "c"))
    assert figures(tmp_path / "c") == figures(tmp_path / "whole")
    assert result["run"]["processes"] == 2
    (place / "other" / "class0").mkdir(parents=True, exist_ok=True)
    Image.new("L", (28, 28)).save(place / "other" / "class0" / "x.png")
    with pytest.raises(foveal.eval.benchmark.DataMissing, match="computed on other data"):
        merge([tmp_path / "c"], tmp_path / "c", data_root=place / "other")
    with pytest.raises(foveal.eval.benchmark.DataMissing, match="holds no store"):
        merge([place / "data"], tmp_path / "d")


def test_killed_with_two_processes_and_resumed_with_three(place, tmp_path):
    run(place, tmp_path / "one", data="fashion")
    process = subprocess.Popen(
        command(place, tmp_path / "many", processes=2, data="fashion"),
        env=ENVIRONMENT, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.time() + 120
    while len(stored(tmp_path / "many")) < 900 and process.poll() is None and time.time() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = stored(tmp_path / "many")
    assert 0 < len(before) <= 1500
    run(place, tmp_path / "many", processes=3, data="fashion")
    assert len(stored(tmp_path / "many")) == len(set(stored(tmp_path / "many"))) == 1500
    assert figures(tmp_path / "many") == figures(tmp_path / "one")


def test_blocks_are_dealt_whole_and_once():
    ids, done = [str(i) for i in range(23)], {"3", "4", "5", "20"}

    def plan(*share):
        return Plan(None, "fp32", 4, 0, "error", None, Share(*share))

    whole = blocks_of(ids, 23, set(), plan())
    assert [len(b) for b in whole] == [4] * 5 + [3]
    for world, shards in ((1, 1), (2, 1), (3, 2), (1, 4)):
        dealt = [
            block
            for rank in range(world)
            for shard in range(shards)
            for block in blocks_of(ids, 23, done, plan(rank, world, shard, shards))
        ]
        assert sorted(i for block in dealt for i in block) == [i for i in range(23) if str(i) not in done]
        assert all(any(set(block) <= set(b) for b in whole) for block in dealt)
    assert len({Share(r, 3, s, 2).process for r in range(3) for s in range(2)}) == 6


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "a/b", "1/2/3"])
def test_shard_is_written_i_of_n(text):
    with pytest.raises(ValueError, match="written I/N"):
        parse_shard(text)


def test_bc69_a_hanging_item_is_named_and_the_run_goes_on(place, tmp_path, monkeypatch):
    from foveal.eval.protocols import classification

    honest = classification.read_or

    def slow(source, **options):
        if Path(source).name == "3.png":
            time.sleep(30)
        return honest(source, **options)

    monkeypatch.setattr(classification, "read_or", slow)
    start = time.time()
    result = foveal.evaluate(
        foveal.load(place / "model.safetensors"), "folder", data_root=place / "data", results=tmp_path, timeout=0.3
    )
    assert time.time() - start < 20
    assert result["n"] == 7
    assert result["failed"] == {"class3/3.png": "class3/3.png: reading took more than 0.3 seconds"}


def test_time_limit_interrupts_and_leaves_no_alarm():
    with pytest.raises(TimeoutError), at_most(0.05):
        time.sleep(5)
    with at_most(None):
        pass
    with at_most(0.05):
        pass
    time.sleep(0.1)  # an alarm left behind would end the process


def test_timeout_has_to_be_positive(place):
    with pytest.raises(ValueError, match="timeout has to be positive"):
        foveal.evaluate(foveal.load(place / "model.safetensors"), "folder", data_root=place / "data", timeout=0)
