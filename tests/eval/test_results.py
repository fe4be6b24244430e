"""Result files as tables, Markdown and csv, and what is expected of them."""

import csv
import io
import json

import pytest

from foveal.eval.benchmark import DataMissing
from foveal.eval.results import as_csv, as_markdown, check_expectations, label, load_results, notes, table, unmet


def result(**changes):
    metrics = {
        "top1": {"value": 0.91234, "interval": [0.9, 0.92]},
        "top5": {"value": None, "interval": [None, None]},
        "ece": {"value": 0.0123456, "interval": [0.01, 0.02]},
        "nll": {"value": "inf", "interval": ["inf", "inf"]},
    }
    return {
        "model": "nano",
        "weights": "nano.tag",
        "benchmark": "toys",
        "n": 1000,
        "main": "top1",
        "metrics": metrics,
        "partial": False,
        "failed": {},
        "on_bad": "error",
        "n_nonfinite": 0,
        "run": {"images_per_second": 1234.5, "peak_memory_mib": 99.6},
        **changes,
    }


def write(root, *results):
    for i, each in enumerate(results):
        (root / str(i)).mkdir(parents=True)
        (root / str(i) / "result.json").write_text(json.dumps(each))
    return root


# tables


def test_table():
    header, rows = table([result()])
    assert header == [
        "benchmark",
        "model",
        "N",
        "top1 % [95 % interval]",
        "top5 %",
        "ece",
        "nll",
        "images/s",
        "peak MiB",
        "notes",
    ]
    assert rows == [
        ["toys", "nano.tag", "1000", "91.23 [90.00, 92.00]", "n/a", "0.0123", "inf", "1234", "100", ""],
    ]


def test_table_of_different_benchmarks():
    other = result(
        main="auc", metrics={"auc": {"value": 0.5, "interval": [0.4, 0.6]}}, run=dict.fromkeys(result()["run"])
    )
    header, rows = table([result(), other])
    assert header[3] == "main metric [95 % interval]"
    assert [len(row) for row in rows] == [len(header)] * 2
    assert rows[1][3] == "0.5000 [0.4000, 0.6000]"
    assert rows[1][header.index("ece")] == ""
    assert rows[1][-3:] == ["", "", ""]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"partial": True}, "partial"),
        ({"failed": {"a.jpg": "truncated"}, "on_bad": "skip"}, "1 unreadable (skip)"),
        ({"n_nonfinite": 3}, "3 not finite"),
        (
            {"partial": True, "failed": {"a": "", "b": ""}, "on_bad": "substitute", "n_nonfinite": 1},
            "partial, 2 unreadable (substitute), 1 not finite",
        ),
    ],
)
def test_notes_stand_in_every_form(changes, said):
    marked = result(**changes)
    assert notes(marked) == said
    assert table([marked])[1][0][-1] == said
    assert as_markdown([marked]).endswith(f"| {said} |")
    assert {row["notes"] for row in csv.DictReader(io.StringIO(as_csv([marked])))} == {said}


@pytest.mark.parametrize(
    ("model", "weights", "called"),
    [
        ("nano", "nano.tag", "nano.tag"),
        ("nano", "random weights", "nano (random weights)"),
        ("nano", "/home/me/nano.safetensors", "nano (nano.safetensors)"),
        ("nano", "given in memory", "nano (given in memory)"),
    ],
)
def test_label(model, weights, called):
    assert label(result(model=model, weights=weights)) == called


def test_markdown_is_a_whole_table():
    lines = as_markdown([result(weights="a|b.pth"), result()]).splitlines()
    assert len(lines) == 4
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    assert "nano (a\\|b.pth)" in lines[2]
    assert {line.replace("\\|", "").count("|") for line in lines} == {11}


def test_csv_has_stored_values():
    rows = list(csv.DictReader(io.StringIO(as_csv([result(weights='w, "x".pth'), result()]))))
    assert len(rows) == 8
    assert rows[0] == {
        "benchmark": "toys",
        "model": "nano",
        "weights": 'w, "x".pth',
        "n": "1000",
        "metric": "top1",
        "value": "0.91234",
        "low": "0.9",
        "high": "0.92",
        "notes": "",
    }
    assert [rows[1][k] for k in ("metric", "value", "low")] == ["top5", "", ""]
    assert rows[3]["value"] == "inf"


# reading


def test_load_results(tmp_path):
    write(tmp_path, result(n=1), result(n=2))
    (tmp_path / "1" / "runs.json").write_text("[]")
    assert [r["n"] for r in load_results(tmp_path)] == [1, 2]
    assert [r["n"] for r in load_results(str(tmp_path / "1" / "result.json"))] == [2]


def test_load_results_refusals(tmp_path):
    with pytest.raises(DataMissing, match=r"nowhere: no result\.json in it; `foveal eval MODEL --bench NAME --output "):
        load_results(tmp_path / "nowhere")
    for text, said in (("{", "not JSON"), ("[1]", "not a result"), ('{"metrics": {}}', "not a result")):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(ValueError, match=rf"result\.json: {said}.*; pass a result\.json or a folder"):
            load_results(tmp_path)


# expectations


def test_expectations_are_parsed():
    given = ["top1>=0.9", " ece >= 1e-3 ", "top1>=1"]
    assert check_expectations(given, ["ece", "top1"]) == [("top1", 0.9), ("ece", 0.001), ("top1", 1.0)]
    assert check_expectations([], []) == []


@pytest.mark.parametrize(
    "text", ["top1", "top1>0.9", "top1=0.9", ">=0.9", "top1>=", "top1>=high", "top1>=0.9>=0.8", ""]
)
def test_expectations_written_differently(text):
    with pytest.raises(ValueError, match=r"--expect is written NAME>=VALUE, for example top1>=0\.9; got "):
        check_expectations([text], ["top1"])


def test_expectation_of_a_metric_that_is_not_there():
    with pytest.raises(ValueError, match="--expect: there is no metric 'top_1' here; there are top1, ece"):
        check_expectations(["top_1>=0.9"], ["top1", "ece", "top1"])
    with pytest.raises(ValueError, match="no metric 'auc' here; there are top1, top5, ece, nll"):
        unmet([result()], ["auc>=0"])


def test_expectations_are_fractions_and_at_least():
    assert unmet([result()], ["top1>=0.91234", "ece>=0"]) == []
    assert unmet([result(), result(weights="nano.other")], ["top1>=0.91235"]) == [
        "nano.tag on toys: top1 is 0.91234, expected >= 0.91235",
        "nano.other on toys: top1 is 0.91234, expected >= 0.91235",
    ]
    assert len(unmet([result()], ["top1>=91"])) == 1


def test_what_is_not_there_misses():
    assert unmet([result()], ["top5>=0"]) == ["nano.tag on toys: top5 is None, expected >= 0.0"]
    broken = {"top1": {"value": float("nan"), "interval": [None, None]}}
    assert len(unmet([result(metrics=broken)], ["top1>=0"])) == 1
    assert unmet([result(), result(metrics=broken | {"auc": {"value": 1.0, "interval": [1, 1]}})], ["auc>=1"]) == []
