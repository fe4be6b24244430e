"""Whole runs on small data with models whose figures are known, interrupted, resumed, damaged and repeated."""

import json
import logging
import os
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import foveal
from foveal.eval import predicting
from foveal.eval.benchmark import Benchmark, DataMissing, get_benchmark
from foveal.eval.data import fashion_mnist
from foveal.eval.data.pictures import Pictures
from foveal.eval.runner import evaluate
from foveal.eval.store import Store
from foveal.kernels._names import UnknownName
from foveal.zoo.images import ImageError


def strict_json(text):
    def refuse(literal):
        raise AssertionError(f"{literal} is no JSON")

    return json.loads(text, parse_constant=refuse)


def folders(results):
    return sorted(path.parent for path in results.rglob("result.json"))


def stored(folder):
    """Logits by id."""
    items, arrays = Store(folder).read()
    return {i: arrays["logits"][item["row"]] for i, item in items.items() if item["row"] is not None}


def lasting(result):
    """A result without what differs from run to run."""
    return {name: value for name, value in result.items() if name not in ("run", "versions")}


def value(result, metric):
    return result["metrics"][metric]["value"]


@pytest.fixture
def forwards():
    """A function that starts counting the pictures a model is given; gives the growing list of batch sizes."""

    def start(model):
        sizes = []
        model.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
        return sizes

    return start


@pytest.fixture
def every_block(monkeypatch):
    """A clock that runs so fast that every block is stored."""
    ticks = count(0, 10)
    monkeypatch.setattr(predicting, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


# figures


def test_a_perfect_model_scores_one(colours, nearest, tmp_path):
    result = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "r", batch_size=7)
    assert result["n"] == 24
    assert result["metrics"].keys() == set(get_benchmark("folder").metrics)
    for metric in ("top1", "top5", "mean_per_class"):
        assert result["metrics"][metric] == {"value": 1.0, "interval": [1.0, 1.0]}
    assert (result["n_failed"], result["failed"], result["n_nonfinite"], result["partial"]) == (0, {}, 0, False)
    assert result["weights"] == "given in memory"
    (folder,) = folders(tmp_path / "r")
    assert strict_json((folder / "result.json").read_text()) == result
    assert folder.parent.parent.name == "folder"
    assert result["run"]["computed_now"] == 24
    assert result["run"]["batch_size"] == 7
    assert result["run"]["images_per_second"] > 0


def test_a_constant_scorer_never_beats_chance(colours, constant, tmp_path):
    result = evaluate(constant, "folder", data_root=colours, results=tmp_path)
    assert [value(result, m) for m in ("top1", "top5", "mean_per_class")] == [0, 0, 0]
    assert value(result, "ece") == pytest.approx(1 / 6)
    assert value(result, "nll") == pytest.approx(np.log(6))


def test_a_broken_model_gets_the_worst_scores_and_valid_json(colours, nearest, tmp_path):
    nearest.register_forward_hook(lambda module, args, output: output * float("nan"))
    result = evaluate(nearest, "folder", data_root=colours, results=tmp_path)
    assert result["n_nonfinite"] == result["n"] == 24
    assert [value(result, m) for m in ("top1", "top5", "mean_per_class")] == [0, 0, 0]
    assert (value(result, "brier"), value(result, "ece"), value(result, "nll")) == (2, 1, "inf")
    (folder,) = folders(tmp_path)
    assert strict_json((folder / "result.json").read_text()) == result
    for line in next(folder.glob("part-0-00000-*.jsonl")).read_text().splitlines()[1:]:
        strict_json(line)


def test_rows_that_are_not_finite_are_counted_and_wrong(colours, nearest, tmp_path):
    nearest.register_forward_hook(lambda module, args, out: out.masked_fill(out.argmax(1, True) == 1, torch.inf))
    result = evaluate(nearest, "folder", data_root=colours, results=tmp_path, batch_size=5)
    assert result["n_nonfinite"] == 4  # the blue ones
    assert value(result, "top1") == 20 / 24
    assert value(result, "mean_per_class") == pytest.approx(5 / 6)


def test_top5_of_fewer_than_five_classes_is_not_applicable(colours, tmp_path):
    for name in ("violet", "white"):
        for path in (colours / name).iterdir():
            path.unlink()
        (colours / name).rmdir()
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
    result = evaluate(net, "folder", data_root=colours, results=tmp_path)
    assert result["metrics"]["top5"] == {"value": None, "interval": [None, None]}
    assert result["metrics"]["top1"]["value"] is not None


# unreadable pictures


@pytest.fixture
def twenty(tmp_path, nearest):
    """Root of 20 plain JPEGs and a csv file that lists them; the one called 07.jpg is cut short."""
    root, rows = tmp_path / "twenty", ["path,label"]
    root.mkdir()
    colours = (nearest.colours * 255).round().int().tolist()
    for i in range(20):
        Image.new("RGB", (200, 160), tuple(colours[i % 6])).save(root / f"{i:02d}.jpg", quality=95)
        rows.append(f"{i:02d}.jpg,{i % 6}")
    whole = (root / "07.jpg").read_bytes()
    (root / "07.jpg").write_bytes(whole[:-500])
    (root / "list.csv").write_text("\n".join(rows))
    return root


@pytest.mark.parametrize("workers", [0, 1])
def test_bc64_truncated_picture_stops_with_its_name(twenty, nearest, tmp_path, workers):
    with pytest.raises(ImageError, match=r"^'[^\n]*07\.jpg' is truncated[^\n]*$"):
        evaluate(nearest, "csv", data_root=twenty, results=tmp_path / "r", batch_size=4, workers=workers)
    assert folders(tmp_path / "r") == []


@pytest.mark.parametrize("batch_size", [1, 20])
def test_bc64_truncated_picture_skipped(twenty, nearest, tmp_path, batch_size, caplog):
    result = evaluate(nearest, "csv", data_root=twenty, results=tmp_path, on_bad="skip", batch_size=batch_size)
    assert (result["n"], result["n_failed"], result["on_bad"]) == (20, 1, "skip")
    assert list(result["failed"]) == ["07.jpg"]
    assert "truncated" in result["failed"]["07.jpg"]
    assert value(result, "top1") == 19 / 20
    assert value(result, "nll") == "inf"
    assert "1 unreadable items" in caplog.text
    assert "07.jpg" not in stored(folders(tmp_path)[0])


def test_bc64_truncated_picture_substituted(twenty, nearest, tmp_path):
    result = evaluate(nearest, "csv", data_root=twenty, results=tmp_path, on_bad="substitute")
    assert (result["n"], result["n_failed"], result["on_bad"]) == (20, 1, "substitute")
    assert "what could be decoded was kept" in result["failed"]["07.jpg"]
    assert np.isfinite(stored(folders(tmp_path)[0])["07.jpg"]).all()


@pytest.mark.parametrize("on_bad", ["skip", "substitute"])
def test_bc64_nothing_can_be_read(twenty, nearest, tmp_path, on_bad):
    for path in twenty.glob("*.jpg"):
        path.unlink()
    result = evaluate(nearest, "csv", data_root=twenty, results=tmp_path, on_bad=on_bad, batch_size=6)
    assert (result["n"], result["n_failed"], len(result["failed"])) == (20, 20, 20)
    if on_bad == "skip":
        assert value(result, "top1") == 0
        assert result["run"]["images_per_second"] is None


def test_bc64_policies_have_their_own_stores(twenty, nearest, tmp_path):
    for on_bad in ("skip", "substitute"):
        evaluate(nearest, "csv", data_root=twenty, results=tmp_path, on_bad=on_bad)
    assert len(folders(tmp_path)) == 2


def test_a_file_name_that_is_not_text(colours, nearest, tmp_path):
    name = b"blue/caf\xe9.png"
    os.rename(colours / "blue" / "0.png", bytes(colours) + b"/" + name)
    result = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "r")
    assert value(result, "top1") == 1
    assert os.fsdecode(name) in stored(folders(tmp_path / "r")[0])


def test_orientation_is_applied_where_the_declaration_says_so(tmp_path):
    """Two pictures that differ in nothing but their orientation tag."""
    picture = Image.new("RGB", (16, 16), "black")
    picture.paste("white", (0, 0, 16, 8))
    for name, orientation in (("a", 1), ("b", 3)):  # 3: upside down
        (tmp_path / "d" / name).mkdir(parents=True)
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.save(tmp_path / "d" / name / "x.png", exif=exif)

    class Lower(nn.Module):
        num_classes, pretrained_cfg = 2, {"input_size": (3, 16, 16), "mean": (0, 0, 0), "std": (1, 1, 1), "crop_pct": 1}

        def forward(self, x):
            upper, lower = x[:, :, :8].mean((1, 2, 3)), x[:, :, 8:].mean((1, 2, 3))
            return torch.stack([upper, lower], 1)

    bench = get_benchmark("folder")
    right = evaluate(Lower(), bench, data_root=tmp_path / "d", results=tmp_path / "applied")
    wrong = evaluate(Lower(), replace(bench, exif=False), data_root=tmp_path / "d", results=tmp_path / "ignored")
    assert (value(right, "top1"), value(wrong, "top1")) == (1, 0.5)


# interruption, repetition, batches


def test_resumed_run_equals_an_uninterrupted_one(grey, tiny, tmp_path, forwards, every_block):
    whole = evaluate(tiny, "folder", data_root=grey, results=tmp_path / "whole", batch_size=4)

    def interrupt(done, total):
        if done >= 16:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny, "folder", data_root=grey, results=tmp_path / "cut", batch_size=4, progress=interrupt)
    (part, *_) = (tmp_path / "cut").rglob("part-*.jsonl")
    before = Store(part.parent).ids()
    assert 0 < len(before) < 30
    files = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in part.parent.iterdir()}

    sizes, seen = forwards(tiny), []
    resumed = evaluate(
        tiny, "folder", data_root=grey, results=tmp_path / "cut", batch_size=4, progress=lambda *at: seen.append(at)
    )
    assert sum(sizes) == 30 - len(before)
    assert resumed["run"]["computed_now"] == 30 - len(before)
    assert seen[0] == (len(before), 30)
    assert seen[-1] == (30, 30)
    assert lasting(resumed) == lasting(whole)
    assert all((p.read_bytes(), p.stat().st_mtime_ns) == was for p, was in files.items())
    one, other = (stored(folders(tmp_path / name)[0]) for name in ("whole", "cut"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[i], other[i]) for i in one)


def test_a_finished_run_is_not_computed_again(grey, tiny, tmp_path, forwards):
    first = evaluate(tiny, "folder", data_root=grey, results=tmp_path, batch_size=5)
    sizes = forwards(tiny)
    again = evaluate(tiny, "folder", data_root=grey, results=tmp_path, batch_size=10)
    assert sizes == []
    assert lasting(again) == lasting(first)
    assert again["run"] == {**first["run"], "computed_now": 0}  # speed and batch size of the run that computed


def test_a_damaged_result_file_is_made_again_from_the_store(grey, tiny, tmp_path, forwards):
    first = evaluate(tiny, "folder", data_root=grey, results=tmp_path)
    (folder,) = folders(tmp_path)
    (folder / "result.json").unlink()
    sizes = forwards(tiny)
    assert lasting(evaluate(tiny, "folder", data_root=grey, results=tmp_path)) == lasting(first)
    assert sizes == []


def test_bc27_batch_size_does_not_change_the_answer(grey, tiny, tmp_path):
    results = {b: evaluate(tiny, "folder", data_root=grey, results=tmp_path / str(b), batch_size=b) for b in (1, 7, 64)}
    logits = {b: stored(folders(tmp_path / str(b))[0]) for b in results}
    for b in (7, 64):
        assert max(np.abs(logits[b][i] - logits[1][i]).max() for i in logits[1]) <= 1e-5
        for metric in ("top1", "top5", "mean_per_class"):
            assert results[b]["metrics"][metric] == results[1]["metrics"][metric]
    assert np.ptp(np.stack(list(logits[1].values())), axis=0).min() > 1e-3  # the answers do differ from each other


def test_worker_processes_change_nothing(grey, tiny, tmp_path):
    results = [
        evaluate(tiny, "folder", data_root=grey, results=tmp_path / str(w), batch_size=8, workers=w) for w in (0, 1)
    ]
    assert lasting(results[0]) == lasting(results[1])
    one, other = (stored(folders(tmp_path / str(w))[0]) for w in (0, 1))
    assert all(np.array_equal(one[i], other[i]) for i in one)


def test_out_of_memory_halves_the_batch(colours, nearest, tmp_path, caplog, forwards):
    whole = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "whole")
    sizes = forwards(nearest)

    def too_large(module, args):
        if len(args[0]) > 5:
            raise torch.OutOfMemoryError

    hook = nearest.register_forward_pre_hook(too_large)
    halved = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "halved", batch_size=20)
    assert "out of memory at batch size 20, trying 10" in caplog.text
    assert sizes == [5, 5, 5, 5, 4]
    assert lasting(halved) == lasting(whole)
    hook.remove()
    nearest.register_forward_pre_hook(lambda module, args: too_large(module, [range(6)]))
    with pytest.raises(torch.OutOfMemoryError):
        evaluate(nearest, "folder", data_root=colours, results=tmp_path / "never")


def test_limit_is_marked_and_apart(colours, constant, tmp_path):
    part = evaluate(constant, "folder", data_root=colours, results=tmp_path, limit=9)
    whole = evaluate(constant, "folder", data_root=colours, results=tmp_path)
    all_of_it = evaluate(constant, "folder", data_root=colours, results=tmp_path, limit=24)
    assert [(r["n"], r["partial"], r["limit"]) for r in (part, whole, all_of_it)] == [
        (9, True, 9),
        (24, False, None),
        (24, False, 24),
    ]
    assert len(folders(tmp_path)) == 3
    assert (
        len(stored(next(f for f in folders(tmp_path) if json.loads((f / "result.json").read_text())["partial"]))) == 9
    )


# keys


def test_what_decides_figures_decides_the_key(grey, tiny, tmp_path):
    def run(**options):
        return evaluate(tiny, "folder", **{"data_root": grey, "results": tmp_path / "r", **options})

    run()
    assert len(folders(tmp_path / "r")) == 1
    run(batch_size=3)
    assert len(folders(tmp_path / "r")) == 1
    info = tiny.foveal
    tiny.foveal = replace(info, preprocessing=replace(info.preprocessing, interpolation="bilinear"))
    run()
    assert len(folders(tmp_path / "r")) == 2
    tiny.foveal = info
    with torch.no_grad():
        next(tiny.parameters()).view(-1)[0] += 1e-3
    run()
    assert len(folders(tmp_path / "r")) == 3
    run(precision="bf16")
    assert len(folders(tmp_path / "r")) == 4
    evaluate(tiny, replace(get_benchmark("folder"), version=2), data_root=grey, results=tmp_path / "r")
    assert len(folders(tmp_path / "r")) == 5


def test_equal_weights_in_another_structure_have_another_key(colours, tmp_path):
    torch.manual_seed(0)
    parts = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 6)]
    one, other = nn.Sequential(*parts, nn.Tanh()), nn.Sequential(*parts, nn.ReLU())
    for net in (one, other, one):
        evaluate(net, "folder", data_root=colours, results=tmp_path)
    assert len(folders(tmp_path)) == 2


def test_bc67_changed_data_have_another_key_and_a_warning(colours, nearest, tmp_path, caplog, forwards):
    old = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "r")
    assert caplog.records == []
    Image.new("RGB", (12, 12), "black").save(colours / "blue" / "0.png")
    sizes = forwards(nearest)
    new = evaluate(nearest, "folder", data_root=colours, results=tmp_path / "r")
    assert sum(sizes) == 24
    assert new["data_sha256"] != old["data_sha256"]
    assert len(folders(tmp_path / "r")) == 2
    assert "folder: the data have changed since" in caplog.text


def test_names_of_files_and_folders_do_not_decide_the_key(grey, tiny, tmp_path, forwards):
    foveal.save(tiny, tmp_path / "one" / "w.safetensors")
    first = evaluate(foveal.load(tmp_path / "one" / "w.safetensors"), "folder", data_root=grey, results=tmp_path / "r")
    assert first["weights"] == str(tmp_path / "one" / "w.safetensors")
    (tmp_path / "one").rename(tmp_path / "two")
    moved = foveal.load(tmp_path / "two" / "w.safetensors")
    sizes = forwards(moved)
    evaluate(moved, "folder", data_root=grey.rename(tmp_path / "moved"), results=tmp_path / "r")
    assert sizes == []


def test_options_that_json_does_not_know(grey, tiny, tmp_path):
    tiny.foveal = replace(tiny.foveal, options={**tiny.foveal.options, "norm_layer": nn.LayerNorm})
    result = evaluate(tiny, "folder", data_root=grey, results=tmp_path)
    assert "LayerNorm" in result["options"]["norm_layer"]
    assert strict_json((folders(tmp_path)[0] / "result.json").read_text()) == result


# the model and the process are left as they were


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_modes_and_threads_are_put_back(colours, nearest, tmp_path, ends):
    nearest.head = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(6).eval())
    nearest.train()
    nearest.head[1].eval()
    before, threads = [m.training for m in nearest.modules()], torch.get_num_threads()
    inside = []

    def hook(module, args):
        inside.append((torch.get_num_threads(), any(m.training for m in module.modules()), torch.is_grad_enabled()))
        if ends == "badly":
            raise ZeroDivisionError

    nearest.register_forward_pre_hook(hook)
    options = {"data_root": colours, "results": tmp_path, "threads": threads + 1}
    if ends == "badly":
        with pytest.raises(ZeroDivisionError):
            evaluate(nearest, "folder", **options)
    else:
        assert evaluate(nearest, "folder", **options)["run"]["threads"] == threads + 1
    assert inside[0] == (threads + 1, False, False)
    assert [m.training for m in nearest.modules()] == before
    assert torch.get_num_threads() == threads
    assert nearest.colours.requires_grad


def test_result_names_kernel_paths(grey, tiny, tmp_path):
    paths = evaluate(tiny, "folder", data_root=grey, results=tmp_path)["run"]["kernel_paths"]
    assert {"bilevel_routing", "softmax"} <= paths.keys()


# refusals


def test_class_counts_have_to_agree(colours, tiny, tmp_path):
    with pytest.raises(ValueError, match=r"gives 10 classes but folder has 6 \(amber, blue, crimson, …\)"):
        evaluate(tiny, "folder", data_root=colours, results=tmp_path)
    assert list(tmp_path.glob("folder/*")) == []


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (lambda x: x.mean((2, 3)), r"gives \(24, 3\), expected \(24, 6\)"),
        (lambda x: x.mean((1, 2, 3)), r"gives \(24,\), expected"),
        (lambda x: x.mean((1, 2, 3))[:, None], r"gives \(24, 1\), expected"),
        (lambda x: [x], "gives a list, expected"),
    ],
)
def test_outputs_have_to_be_one_logit_a_class(colours, tmp_path, output, said):
    class Odd(nn.Module):
        def forward(self, x):
            return output(x)

    with pytest.raises(ValueError, match=said):
        evaluate(Odd(), "folder", data_root=colours, results=tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "fp8"}, "precision is one of fp32, bf16, fp16, got 'fp8'"),
        ({"on_bad": "ignore"}, "on_bad is one of error, skip, substitute, got 'ignore'"),
        ({"batch_size": 0}, "batch_size has to be 1 or more, got 0"),
        ({"limit": 0}, "limit has to be 1 or more, got 0"),
        ({"threads": 0}, "threads has to be 1 or more, got 0"),
        ({"workers": -1}, "workers has to be 0 or more, got -1"),
        ({"device": "nonsense"}, "device 'nonsense' can't be used here"),
        ({"device": "cuda:7"}, "device 'cuda:7' can't be used here"),
        ({"device": "meta"}, "device 'meta' can't be used here"),
    ],
)
def test_refused_at_the_door(colours, nearest, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        evaluate(nearest, "folder", data_root=colours, results=tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


def test_unknown_names_and_missing_data(nearest, tmp_path):
    with pytest.raises(UnknownName, match="no benchmark 'foldr'; did you mean folder"):
        evaluate(nearest, "foldr")
    with pytest.raises(UnknownName, match="did you mean biformer_nano"):
        evaluate("biformer_nanoo", "fashion-mnist-test")
    with pytest.raises(DataMissing, match="folder: needs its data"):
        evaluate(nearest, "folder", results=tmp_path)


# BC-68


def test_bc68_speed_and_memory_stay_level(nearest, tmp_path, monkeypatch):
    """5,000 toy pictures: processor time of the last blocks as of the first, and no growing memory."""
    monkeypatch.setattr(fashion_mnist, "toys", lambda root: toys, raising=False)
    colours = (nearest.colours.detach() * 255).byte().numpy()
    targets = [i % 6 for i in range(5000)]
    arrays = [np.broadcast_to(colours[t], (8, 8, 3)) for t in targets]
    toys = Pictures([f"{i:04d}" for i in range(5000)], arrays, targets, list("abcdef"))
    bench = Benchmark("toys", "classification", "fashion_mnist:toys", ("top1",), "top1", 1, "made here", embedded=True)
    clock, memory = [], []

    def progress(done, total):
        clock.append(time.process_time())
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024)

    assert value(evaluate(nearest, bench, results=tmp_path, batch_size=10, threads=1, progress=progress), "top1") == 1
    spent = np.diff(clock)
    assert len(spent) == 500
    # what a busy machine adds is not in the fastest tenth
    first, last = np.quantile(spent[:50], 0.1), np.quantile(spent[-50:], 0.1)
    assert last < 1.2 * first
    assert memory[-1] - memory[50] < 20
    assert len(list(tmp_path.rglob("part-*.jsonl"))) < 60


def test_logging_is_all_that_is_said(colours, nearest, tmp_path, capsys):
    logging.getLogger("foveal").setLevel(logging.WARNING)
    evaluate(nearest, "folder", data_root=colours, results=tmp_path)
    assert capsys.readouterr() == ("", "")
