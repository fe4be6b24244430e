"""The store of predictions: parts are whole or not there, and neither their order nor a repetition changes anything."""

import json

import numpy as np
import pytest

from foveal.eval import store as module
from foveal.eval.store import Store, write_json


def items(*ids, bad=()):
    rows = iter(range(len(ids)))
    return [
        {"id": i, "row": None if i in bad else next(rows), "error": "unreadable" if i in bad else None} for i in ids
    ]


def logits(*values):
    return {"logits": np.array([[v, -v] for v in values], np.float32)}


def by_id(store):
    """Every item with its own logits."""
    found, arrays = store.read()
    return {i: None if item["row"] is None else arrays["logits"][item["row"]].tolist() for i, item in found.items()}


def test_what_goes_in_comes_out(tmp_path):
    store = Store(tmp_path / "new" / "folder")
    assert (store.ids(), store.read()) == (set(), ({}, {}))
    store.append(items("a", "b", "c", bad=("b",)), logits(1, 3))
    store.append(items("d", bad=("d",)), {})  # a part in which nothing could be read
    store.append(items("ü/\udce9.png"), logits(5))  # a file name that is not UTF-8
    assert store.ids() == {"a", "b", "c", "d", "ü/\udce9.png"}
    assert by_id(store) == {"a": [1, -1], "b": None, "c": [3, -3], "d": None, "ü/\udce9.png": [5, -5]}
    assert store.read()[0]["b"]["error"] == "unreadable"
    assert store.read()[1]["logits"].dtype == np.float32


@pytest.fixture
def killed_after(monkeypatch):
    """A function that lets so many files get their name, then stops the process where it stands."""

    def arm(names):
        replace, given = module.os.replace, []

        def rename(source, target):
            if len(given) == names:
                raise KeyboardInterrupt
            given.append(target)
            replace(source, target)

        monkeypatch.setattr(module.os, "replace", rename)

    return arm


@pytest.mark.parametrize("names", [0, 1])
def test_an_unfinished_part_is_as_good_as_none(tmp_path, monkeypatch, killed_after, names):
    store = Store(tmp_path)
    store.append(items("a"), logits(1))
    killed_after(names)
    with pytest.raises(KeyboardInterrupt):
        store.append(items("b"), logits(9))
    monkeypatch.undo()
    assert len(list(tmp_path.iterdir())) == 3 + names  # something of it lies there
    assert store.ids() == {"a"}
    assert by_id(store) == {"a": [1, -1]}
    store.append(items("b"), logits(2))
    assert by_id(store) == {"a": [1, -1], "b": [2, -2]}


def test_orphans_are_ignored(tmp_path):
    store = Store(tmp_path)
    store.append(items("a"), logits(1))
    (tmp_path / "part-0-00001.safetensors").write_bytes(b"arrays without items")
    (tmp_path / "part-0-00002.jsonl.new").write_text('{"id": "z", "ro')
    assert by_id(store) == {"a": [1, -1]}
    store.append(items("b"), logits(2))
    assert by_id(store) == {"a": [1, -1], "b": [2, -2]}


def test_order_and_shards_change_nothing(tmp_path):
    one, other = Store(tmp_path / "one"), Store(tmp_path / "other")
    one.append(items("a", "b", "c", "d"), logits(1, 2, 3, 4))
    other.append(items("d"), logits(4), process=1)
    other.append(items("c", "b"), logits(3, 2))
    other.append(items("a"), logits(1), process=1)
    assert sorted(p.name.rpartition("-")[0] for p in other.folder.glob("*.jsonl")) == [
        "part-0-00000", "part-1-00000", "part-1-00001",
    ]  # fmt: skip
    assert by_id(one) == by_id(other)


def test_an_id_stored_twice_keeps_its_first(tmp_path):
    store = Store(tmp_path)
    store.append(items("a", "b"), logits(1, 2))
    store.append(items("b", "c"), logits(9, 3))
    assert by_id(store) == {"a": [1, -1], "b": [2, -2], "c": [3, -3]}


def test_parts_are_readable_as_any_file_one_writes(tmp_path):
    store = Store(tmp_path)
    store.append(items("a"), logits(1))
    (tmp_path / "own").touch()
    assert {p.stat().st_mode for p in tmp_path.iterdir()} == {(tmp_path / "own").stat().st_mode}


def test_json_is_whole_ascii_and_strict(tmp_path, killed_after):
    write_json(tmp_path / "x.json", {"ids": ["ü", "\udce9"]})
    assert (tmp_path / "x.json").read_bytes().isascii()
    assert json.loads((tmp_path / "x.json").read_text())["ids"] == ["ü", "\udce9"]
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", float("nan"))

    killed_after(0)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "x.json", "new")
    assert json.loads((tmp_path / "x.json").read_text())["ids"] == ["ü", "\udce9"]


def test_parts_of_another_run_and_changed_parts_are_computed_again(tmp_path, caplog):
    """A part is bound to its run and to its bytes: copied over, cut, swapped or edited it does not count."""
    store, other = Store(tmp_path / "key"), Store(tmp_path / "other")
    store.append(items("a"), logits(1))
    store.append(items("b"), logits(2))
    other.append(items("c"), logits(3))
    for path in other.folder.iterdir():
        (store.folder / path.name).write_bytes(path.read_bytes())
    assert Store(tmp_path / "key").ids() == {"a", "b"}
    first, second, *_ = sorted(p for p in store.folder.glob("*.safetensors") if "part-0-0000" in p.name)
    mine = [p for p in (first, second) if '"store": "key"' in p.with_suffix(".jsonl").read_text()]
    mine[0].write_bytes(mine[0].read_bytes()[:-4])
    assert len(Store(tmp_path / "key").ids()) == 1
    lines = sorted(store.folder.glob("*.jsonl"))
    for path in lines:
        path.write_text(path.read_text().replace('"row": 0', '"row": null'))
    assert Store(tmp_path / "key").ids() == set()
    assert "not a whole part of this run" in caplog.text


def test_two_runs_that_add_to_one_store_at_once_lose_nothing(tmp_path):
    """Each part has a name of its own."""
    one, two = Store(tmp_path / "key"), Store(tmp_path / "key")
    for i in range(5):
        one.append(items(f"a{i}"), logits(i + 1))
        two.append(items(f"b{i}"), logits(10 * i + 1))
    joined = Store(tmp_path / "key")
    assert len(joined.ids()) == 10
    assert by_id(joined)["b4"] == [41, -41]


def test_damaged_notes_are_left_aside(tmp_path, caplog):
    store = Store(tmp_path)
    store.note_run({"items": 1}, 0)
    (tmp_path / "runs-0.json").write_text("{")
    assert store.runs() == {}
    assert "damaged" in caplog.text
