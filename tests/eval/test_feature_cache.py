"""The cache on disk: what is stored comes back, damage never does, and it stays under its cap."""

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from foveal.eval.feature_cache import FeatureCache

KEY = {"state_sha256": "0" * 64, "precision": "fp32", "preprocessing": {"size": 8, "mean": [0.5]}}
IDS = ["a/1.png", 'b/"2".png', "ü/3.png", "bad\udce9.png"]


def rows(n=4, dim=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(tmp_path / "cache")


def only_part(cache, key=KEY):
    (path,) = cache.entry(key).glob("part-*")
    return path


def fill(cache, number, n=100, used=None):
    """An entry of n rows with 25 numbers each, last used at a time of our choice."""
    key = KEY | {"number": number}
    assert cache.store(key, [str(i) for i in range(n)], rows(n, 25, number))
    os.utime(cache.entry(key) / "key.json", ns=(0, (used or number) * 10**9))
    return key


def test_what_is_stored_comes_back_in_parts(cache):
    assert cache.read(KEY)[0] == []
    features = rows()
    assert cache.store(KEY, IDS[:3], features[:3])
    assert cache.store(KEY, IDS[3:], features[3:])
    ids, got = FeatureCache(cache.folder).read(KEY)
    assert sorted(ids) == sorted(IDS)
    assert got.dtype == np.float32
    assert np.array_equal(got[[ids.index(name) for name in IDS]], features)


def test_values_that_are_not_finite_and_views_come_back(cache):
    features = np.full((6, 4), np.nan, np.float32).T
    features[:, 1] = np.inf
    assert cache.store(KEY, IDS, features)
    assert np.array_equal(cache.read(KEY)[1], features, equal_nan=True)


def test_key_is_its_content(cache):
    again = json.loads(json.dumps(dict(reversed(KEY.items()))))
    assert cache.entry(again) == cache.entry(KEY)
    others = [KEY | {"precision": "bf16"}, KEY | {"more": 1}, KEY | {"preprocessing": {"size": 8, "mean": [0.25]}}]
    assert len({cache.entry(key) for key in [KEY, *others]}) == 4
    assert cache.entry(KEY).parent == cache.folder


def test_default_folder_is_in_home(monkeypatch, tmp_path):
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path))
    assert FeatureCache().folder == tmp_path / "features"
    assert FeatureCache().size() == 0
    assert not (tmp_path / "features").exists()


def test_an_item_stored_twice_keeps_its_first_and_counts_once(cache):
    cache.store(KEY, IDS[:2], rows(2))
    cache.store(KEY, IDS[:2], rows(2))
    assert only_part(cache)  # the same items, the same file
    cache.store(KEY, IDS[1:], rows(3))
    ids, got = cache.read(KEY)
    assert sorted(ids) == sorted(IDS)
    assert len(got) == 4


@pytest.mark.parametrize("place", [0, 9, 40, 0.5, -1])
def test_a_changed_byte_anywhere_is_a_miss_with_a_warning(cache, caplog, place):
    cache.store(KEY, IDS, rows())
    path = only_part(cache)
    data = bytearray(path.read_bytes())
    data[int(len(data) * place) if isinstance(place, float) else place] ^= 1
    path.write_bytes(data)
    assert [str(path) in sentence for sentence in cache.verify()] == [True]
    with caplog.at_level(logging.WARNING, "foveal"):
        assert cache.read(KEY)[0] == []
    assert "a damaged part of the feature cache" in caplog.text
    assert "its items are computed again" in caplog.text
    assert cache.verify() == []


@pytest.mark.parametrize("keep", [0, 4, 100])
def test_a_cut_part_is_a_miss(cache, keep):
    cache.store(KEY, IDS, rows())
    path = only_part(cache)
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.read(KEY)[0] == []


def test_a_part_of_another_key_or_with_other_ids_is_a_miss(cache):
    cache.store(KEY, IDS, rows())
    other = KEY | {"precision": "fp16"}
    cache.store(other, ["x"], rows(1))
    stray = cache.entry(other) / "part-0000000000000000.safetensors"
    stray.write_bytes(only_part(cache).read_bytes())
    assert cache.read(other)[0] == ["x"]
    assert not stray.exists()
    save_file(load_file(only_part(cache)), only_part(cache), {"ids": json.dumps(IDS[::-1]), "key": "", "sha256": ""})
    assert cache.read(KEY)[0] == []


def test_parts_of_two_lengths_are_not_mixed(cache, caplog):
    cache.store(KEY, IDS[:2], rows(2, 6))
    cache.store(KEY, IDS[2:], rows(2, 7))
    with caplog.at_level(logging.WARNING, "foveal"):
        ids, got = cache.read(KEY)
    assert len(ids) == len(got) == 2
    assert "another length" in caplog.text


def test_verify_finds_leftovers_and_repairs(cache):
    fill(cache, 1)
    key = fill(cache, 2)
    assert cache.verify() == []
    entry = cache.entry(key)
    (entry / ".1234.part").write_bytes(b"half")
    (entry / "key.json").write_text("{}")
    only_part(cache, key).write_bytes(b"")
    said = cache.verify(repair=True)
    assert len(said) == 3
    assert "a file that a killed process left" in said[0]
    assert "does not describe the entry that it stands in" in said[1]
    assert "a damaged part" in said[2]
    assert cache.verify() == []
    assert [*entry.iterdir()] == []


def test_least_recently_used_entries_go_first(cache):
    keys = [fill(cache, number) for number in (1, 2, 3)]
    one = cache.size() // 3
    cache.cap = int(3.9 * one)
    assert len(cache.read(keys[0])[0]) == 100  # a use: now 2 is the oldest
    fill(cache, 4, used=10**10)
    assert [cache.entry(key).exists() for key in keys] == [True, False, True]
    assert cache.size() <= cache.cap
    fill(cache, 5, used=10**10)
    assert [cache.entry(key).exists() for key in keys] == [True, False, False]


def test_the_cap_is_never_passed(cache):
    cache.cap = 40_000
    sizes = []
    for number in range(1, 12):
        cache.store(KEY | {"number": number}, [str(i) for i in range(100)], rows(100, 25))
        sizes.append(sum(path.stat().st_size for path in cache.folder.rglob("*") if path.is_file()))
    assert max(sizes) <= cache.cap
    assert sizes[-1] == cache.size() > 20_000


def test_features_larger_than_the_cap_are_not_kept_and_evict_nothing(cache, caplog):
    old = fill(cache, 1)
    cache.cap = 15_000
    new = KEY | {"number": 2}
    with caplog.at_level(logging.WARNING, "foveal"):
        assert not cache.store(new, [str(i) for i in range(200)], rows(200, 25))
    assert "no room for these features under the cap of 15000 bytes; they are not kept" in caplog.text
    assert cache.read(old)[0]
    assert not cache.entry(new).exists()


def test_the_entry_being_filled_is_not_evicted_by_its_own_parts(cache):
    cache.cap = 25_000
    stored = [cache.store(KEY, [f"{part}-{i}" for i in range(100)], rows(100, 25)) for part in range(4)]
    assert stored == [True, True, False, False]
    assert len(cache.read(KEY)[0]) == 200


def test_nothing_else_in_the_folder_is_touched(cache):
    cache.folder.mkdir()
    mine, link = cache.folder / "notes", cache.folder / ("f" * 64)
    mine.mkdir()
    (mine / "part-1.safetensors").write_bytes(b"x" * 50_000)
    link.symlink_to(mine, target_is_directory=True)
    cache.cap = 15_000
    fill(cache, 1)
    fill(cache, 2)
    assert (mine / "part-1.safetensors").exists()
    assert cache.verify(repair=True) == []
    assert cache.size() < 15_000


def test_a_folder_that_can_not_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "foveal"):
        assert not FeatureCache(tmp_path / "file").store(KEY, IDS, rows())
    assert "features can't be kept here" in caplog.text


def test_processes_that_store_the_same_items_at_once(cache):
    code = f"""
import numpy as np
from foveal.eval.feature_cache import FeatureCache
cache = FeatureCache({str(cache.folder)!r})
for part in range(6):
    cache.store({KEY!r}, [f"{{part}}-{{i}}" for i in range(10)], np.full((10, 3), part, np.float32))
print(len(cache.read({KEY!r})[0]))
"""
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate()[0].strip() for run in runs] == ["60", "60"]
    ids, got = cache.read(KEY)
    assert len(ids) == 60
    assert all(row[0] == int(name.split("-")[0]) for name, row in zip(ids, got))
    assert cache.verify() == []


@pytest.mark.parametrize(
    ("ids", "features"),
    [
        (IDS, rows(3)),
        (IDS, rows().astype(np.float64)),
        (IDS, rows()[0]),
        (["a", "a"], rows(2)),
    ],
)
def test_error_of_store(cache, ids, features):
    with pytest.raises(ValueError, match=r"features must be \(n, D\) float32, a row for each of n different ids, got"):
        cache.store(KEY, ids, features)


def test_no_items_are_no_part(cache):
    assert cache.store(KEY, [], rows(0))
    assert not cache.folder.exists()


def test_error_of_cap():
    with pytest.raises(ValueError, match="cap must be at least 1 byte, got 0"):
        FeatureCache("x", cap=0)
