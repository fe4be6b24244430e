"""The catalogue as data: every row is checked, and a wrong one is answered with file, row and field."""

from __future__ import annotations

import doctest
import tomllib

import pytest
import timm
import torch

from foveal.weights import catalogue
from foveal.weights.catalogue import Claim, Preprocessing, Row, from_json, parse, rows, rows_of
from foveal.weights.places import file_of, row_for, row_of_file, sha256_of
from foveal.zoo.create import create_model
from foveal.zoo.registry import is_model, models

NAMES = list(rows())
FILES = sorted((catalogue.FOLDER / "catalogue").glob("*.toml"))

GOOD = """
["net.tag"]
arch = "net"
file = "net.pth"
page = "https://example.org"
licences = { code = "MIT", weights = "MIT", data = "CC0-1.0" }
preprocessing = { size = 32, mean = [0.5], std = [0.25] }
options = { topk = [1, "full"], act = "gelu" }
claims = [{ benchmark = "b", metric = "top1", value = 0.5, source = "s" }]
labels = ["a", "b"]
"""

each_row = pytest.mark.parametrize("name", NAMES)


def test_the_docstring_examples_run():
    result = doctest.testmod(catalogue)
    assert result.attempted > 0
    assert result.failed == 0


# The shipped rows


@each_row
def test_the_model_exists_and_builds_with_the_options(name):
    row = rows()[name]
    assert is_model(row.arch) or timm.is_model(row.arch), f"no model {row.arch!r}"
    with torch.device("meta"):
        model = create_model(row.arch, **row.options)
    channels, classes = len(row.preprocessing.mean), getattr(model, "num_classes", None)
    if row.labels:
        assert len(row.labels) == classes
        assert len({*row.labels}) == classes
    with torch.no_grad():
        logits = model.eval()(torch.empty(1, channels, *row.preprocessing.shape, device="meta"))
    assert logits.shape == (1, classes)
    assert len(row.probe) <= classes


@each_row
def test_the_facts_are_complete(name):
    row = rows()[name]
    assert all(row.licences[part].strip() for part in ("code", "weights", "data"))
    assert all(0 <= claim.value <= 1 for claim in row.claims)
    assert all(claim.source and claim.benchmark and claim.metric for claim in row.claims)
    assert row.page
    assert row.file == row.file.strip("/").rpartition("/")[2]
    assert row.sha256 or not row.url  # what is fetched is checked
    spec = row.preprocessing
    assert all(0 <= m <= 1 for m in spec.mean)
    assert all(0 < s <= 1 for s in spec.std)


@each_row
def test_what_ships_is_the_file_of_the_row(name):
    row = rows()[name]
    if row.path is None:
        return
    assert sha256_of(row.path) == row.sha256
    assert file_of(row) == row.path
    assert row_of_file(row.arch, row.path) == row
    assert row.trained_by
    assert row.probe


def test_every_row_of_the_files_is_listed_once():
    tables = [tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES]
    assert [name for table in tables for name in table] == NAMES
    assert [row for arch in dict.fromkeys(r.arch for r in rows().values()) for row in rows_of(arch)]
    ours = {row.name for arch in models() for row in rows_of(arch)}
    assert ours <= {*NAMES}
    files = [row.file for row in rows().values()]
    assert len(files) == len({*files})  # they share one folder


@each_row
def test_a_row_is_found_by_its_tag_and_by_its_name(name):
    row = rows()[name]
    assert row_for(row.arch, row.tag) is row_for(row.arch, name) is row
    assert row_for(row.arch, "no such tag") is None
    assert row_for(row.arch, f"other.{row.tag}") is None
    assert models()[row.arch].tags[0] == rows_of(row.arch)[0].tag if is_model(row.arch) else True


# Reading rows


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "catalogue").mkdir()
    monkeypatch.setattr(catalogue, "FOLDER", tmp_path)
    rows.cache_clear()
    yield tmp_path / "catalogue"
    monkeypatch.undo()
    rows.cache_clear()


def test_a_good_row(folder):
    (folder / "net.toml").write_text(GOOD, encoding="utf-8")
    (row,) = rows().values()
    assert row == Row(
        name="net.tag",
        arch="net",
        file="net.pth",
        page="https://example.org",
        licences={"code": "MIT", "weights": "MIT", "data": "CC0-1.0"},
        preprocessing=Preprocessing(32, (0.5,), (0.25,)),
        options={"topk": (1, None), "act": "gelu"},
        claims=(Claim("b", "top1", 0.5, "s"),),
        labels=("a", "b"),
    )
    assert (row.tag, row.path, row.commercial) == ("tag", None, True)
    assert rows_of("net") == [row]
    assert rows_of("ne") == []


@pytest.mark.parametrize("part", ["code", "weights", "data"])
def test_one_licence_is_enough_to_forbid_commercial_use(folder, part):
    (folder / "net.toml").write_text(GOOD.replace(f'{part} = "', f'{part} = "CC-BY-NC-4.0 or '), encoding="utf-8")
    assert not rows()["net.tag"].commercial


WRONG = [
    ('arch = "net"', "", "missing field arch"),
    ('file = "net.pth"', "", "missing field file"),
    ('page = "https://example.org"', "", "missing field page"),
    ("preprocessing = {", "preprocessed = {", "unknown field preprocessed"),
    ("labels = [", "label = [", "unknown field label"),
    ('file = "net.pth"', "file = 3", "file has to be a str, got 3"),
    ('labels = ["a", "b"]', 'labels = "ab"', "labels has to be a list, got 'ab'"),
    ('options = { topk = [1, "full"], act = "gelu" }', "options = [1]", r"options has to be a dict, got \[1\]"),
    ("preprocessing = {", "preprocessing = 3 #", "preprocessing has to be a dict, got 3"),
    (', data = "CC0-1.0"', "", "licences need data"),
    ('code = "MIT", weights = "MIT", data = "CC0-1.0"', "", "licences need code, data, weights"),
    ("size = 32", "size = 0", "preprocessing: size and width are pixels, got 0"),
    ("size = 32", 'size = "32"', "preprocessing: size and width are pixels, got '32'"),
    ("size = 32", 'size = 32, crop_mode = "center"', "preprocessing: crop_mode is shorter, squash or border"),
    ("size = 32", 'size = 32, interpolation = "nearest"', "preprocessing: interpolation is bicubic or bilinear"),
    ("size = 32", "size = 32, crop_pct = 87.5", "preprocessing: crop_pct is a fraction"),
    ("size = 32", "size = 32, crop = 1", "unexpected keyword argument 'crop'"),
    ("size = 32, ", "", "missing 1 required positional argument: 'size'"),
    ("std = [0.25]", "std = [0.25, 0.25]", "preprocessing: mean and std are lists of one length"),
    ('metric = "top1"', 'metrics = "top1"', "unexpected keyword argument 'metrics'"),
    ('value = 0.5, source = "s"', "value = 0.5", "missing 1 required positional argument: 'source'"),
    ('arch = "net"', 'arch = "nets"', r"the name has to be nets\.<tag>"),
    ('["net.tag"]', '["net."]', r"the name has to be net\.<tag>"),
    ('arch = "net"', 'arch = "net"\nsha256 = "abc"', "sha256 has to be 64 hexadecimal digits, got 'abc'"),
    ('arch = "net"', 'arch = "net"\nremap = "none such"', "remap is one of .*; got 'none such'"),
    ('arch = "net"', 'arch = "net"\nsize = "3 MB"', "size has to be a int, got '3 MB'"),
    ('arch = "net"', 'arch = "net"\naddresses = ["ftp://x.org/y"]', "ftp://x.org/y"),
    ('arch = "net"', 'arch = "net"\nurl = "http://x.org/y"', "url has to begin with https://, got 'http://x.org/y'"),
]


@pytest.mark.parametrize(("given", "changed", "sentence"), WRONG)
def test_a_wrong_row_is_named(folder, given, changed, sentence):
    assert given in GOOD
    (folder / "some.toml").write_text(GOOD.replace(given, changed), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^some\.toml: weights row 'net\.(tag)?': .*{sentence}") as error:
        rows()
    assert "\n" not in str(error.value)


def test_a_row_that_is_no_table(folder):
    with pytest.raises(ValueError, match=r"x\.toml: weights row 'net\.tag': has to be a table, got 3"):
        parse("net.tag", 3, folder / "x.toml")
    (folder / "some.toml").write_text("version = 1\n" + GOOD, encoding="utf-8")
    with pytest.raises(ValueError, match=r"some\.toml: weights row 'version': has to be a table, got 1"):
        rows()


def test_a_file_that_is_not_toml(folder):
    (folder / "a.toml").write_text(GOOD, encoding="utf-8")
    (folder / "b.toml").write_text("\n[net\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^b\.toml: not TOML \(.*line 2"):
        rows()


def test_a_name_in_two_files_is_an_error(folder):
    for name in ("a.toml", "b.toml"):
        (folder / name).write_text(GOOD, encoding="utf-8")
    with pytest.raises(ValueError, match=r"b\.toml: weights row 'net\.tag' is defined twice"):
        rows()


def test_the_first_row_is_the_default(folder):
    second = GOOD.replace("net.tag", "net.best").replace("net.pth", "best.pth")
    (folder / "a.toml").write_text(second + GOOD, encoding="utf-8")
    assert [row.tag for row in rows_of("net")] == ["best", "tag"]


def test_settings_that_went_through_json():
    facts = {"topk": [1, [2, None]], "act": "full", "deep": {"sizes": [1, 2]}, "none": None}
    assert from_json(facts) == {"topk": (1, (2, None)), "act": "full", "deep": {"sizes": (1, 2)}, "none": None}
    assert from_json(facts, null="full")["act"] is None
