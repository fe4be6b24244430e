"""The vector files against the package's metrics: a line a file, and every way in which a file can fail."""

import json
import re
import shutil
from pathlib import Path

import pytest

from foveal.eval import selftest as module
from foveal.eval.benchmark import DataMissing
from foveal.eval.metrics.vectors import load_vectors
from foveal.eval.selftest import METRICS, Outcome, main, selftest

VECTORS = Path(__file__).parents[1] / "data/vectors"
FILES = sorted(path.name for path in VECTORS.glob("*.json"))


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        shutil.copy(VECTORS / name, tmp_path / name)
    return tmp_path


def book(expected, given=None, atol=1e-5, **more):
    vectors = [{"id": "one", "note": "", "input": given, "expected": expected}]
    return {"metric": "m", "schema": "vector-v1", "atol": atol, "rtol": 0, "references": [], "vectors": vectors} | more


def outcome(tmp_path, contents, evaluate=None):
    (tmp_path / "m.json").write_text(contents if isinstance(contents, str) else json.dumps(contents))
    found = selftest(tmp_path, {} if evaluate is None else {"m": evaluate})
    assert len(found) == 1
    return found[0]


def test_every_file_of_the_tests_passes():
    outcomes = selftest(VECTORS)
    assert [each.file for each in outcomes] == FILES
    assert {each.status for each in outcomes} == {"passed"}, "\n".join(map(str, outcomes))
    assert all(re.fullmatch(r"passed    \S+\.json: \d+ vectors, \d+ figures", str(each)) for each in outcomes)


def test_the_table_has_exactly_the_files_of_the_tests():
    assert sorted(METRICS) == [name.removesuffix(".json") for name in FILES]


def test_number_of_figures_compared_is_that_of_the_file():
    for each in selftest(VECTORS):
        vectors = load_vectors(VECTORS / each.file)["vectors"]
        figures = sum(len(figures) for vector in vectors for figures in vector["expected"].values())
        assert each.note == f"{len(vectors)} vectors, {figures} figures"


def test_main_says_a_line_a_file_and_counts(folder, capsys):
    (folder / "fid_artfid.json").write_text(json.dumps(book({"fid": {"value": 1}})))
    assert main(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(FILES) + 2
    assert "not there fid_artfid.json: no metric here evaluates it yet (1 vectors)" in lines
    assert lines[-1] == f"{len(FILES)} passed, 0 failed, 1 not there"


@pytest.mark.parametrize("name", FILES)
def test_one_changed_figure_fails_its_file_alone(folder, name):
    book = json.loads((folder / name).read_text())
    key, figures = next(iter(book["vectors"][0]["expected"].items()))
    last = list(figures)[-1]
    figures[last] += 0.01
    (folder / name).write_text(json.dumps(book))
    said = []
    assert main(folder, said.append) == module.FAILED == 5
    assert said[-1] == f"{len(FILES) - 1} passed, 1 failed, 0 not there"
    assert said[FILES.index(name)].startswith(f"failed    {name}: {book['vectors'][0]['id']}, {key}: {last} is ")


@pytest.mark.parametrize("name", FILES)
def test_an_unknown_reference_fails_its_file(folder, name):
    book = json.loads((folder / name).read_text())
    book["vectors"][-1]["expected"]["somebody"] = {"figure": 1}
    (folder / name).write_text(json.dumps(book))
    assert str(selftest(folder)[FILES.index(name)]).endswith("somebody: this reference is not produced")


@pytest.mark.parametrize(
    ("expected", "given", "note"),
    [
        ({"a": {"x": 1}}, {"a": {"x": 1, "more": 2}, "b": {}}, "1 vectors, 1 figures"),
        ({"a": 1.0}, {"a": 1.000001}, "1 vectors, 1 figures"),
        ({"a": 1.0}, {"a": 1.1}, "one, a: the figure is 1.1, expected 1.0"),
        ({"a": {"x": "nan"}}, {"a": {"x": float("nan")}}, "1 vectors, 1 figures"),
        ({"a": {"x": 1}}, {"a": {"x": float("nan")}}, "one, a: x is nan, expected 1"),
        ({"a": {"x": 1}}, {"a": {"y": 1}}, "one, a: x is not produced"),
        ({"a": {"x": [1, 2]}}, {"a": {"x": [1]}}, "one, a: x is [1], expected [1, 2]"),
        ({}, {}, "one, no reference gives a figure"),
        ({"a": {"measured": 1}}, {"a": {}}, "one, no figure to compare"),
        ({"a": {"x_below": 2, "measured": 9}}, {"a": {"x": 1}}, "1 vectors, 1 figures"),
        ({"a": {"x_below": 2}}, {"a": {"x": 2}}, "one, a: x is 2, expected below 2"),
        ({"a": {"x_below": 2}}, {"a": {"x": float("nan")}}, "one, a: x is nan, expected below 2"),
    ],
)
def test_comparison(tmp_path, expected, given, note):
    found = outcome(tmp_path, book(expected), lambda _: given)
    assert found == Outcome("m.json", "passed" if "figures" in note else "failed", note)


@pytest.mark.parametrize(
    ("contents", "note"),
    [
        ("{", "JSONDecodeError"),
        (book({"a": 1}, schema="vector-v2"), "must have the schema 'vector-v1', got 'vector-v2'"),
        (book({"a": 1}, vectors=[]), "it has no vectors"),
        (book({"a": 1}, atol=None), "TypeError"),
        ('{"schema": "vector-v1"}', "KeyError: 'vectors'"),
    ],
)
@pytest.mark.parametrize("evaluate", [None, lambda _: {"a": 1}])
def test_a_damaged_file_fails_whether_its_metric_is_there_or_not(tmp_path, contents, note, evaluate):
    found = outcome(tmp_path, contents, evaluate)
    assert found.status == "failed"
    assert note in found.note


def test_an_input_that_the_metric_refuses_is_a_failure(tmp_path):
    shutil.copy(VECTORS / "calibration_ece.json", tmp_path / "multilabel_map.json")
    assert str(selftest(tmp_path)[0]) == "failed    multilabel_map.json: KeyError: 'scores'"


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_no_files_is_one_sentence(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataMissing, match=rf"{name}: no vector files \(\*\.json\) in it; pass the vectors folder"):
        selftest(tmp_path / name)
