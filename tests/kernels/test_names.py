"""Names read without import."""

import pickle

import pytest

from foveal.kernels._names import UnknownName, declarations, declared


def test_declared_reads_literals_only(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import nothing_of_this_name\nFACTS: dict = {'a': (1, None)}\n")
    bad.write_text("FACTS = dict(a=1)\n")
    assert declared(good, "FACTS") == {"a": (1, None)}
    assert declared(good, "OTHER") is None
    with pytest.raises(ValueError, match="FACTS has to be a plain literal"):
        declared(bad, "FACTS")
    bad.unlink()
    (tmp_path / "_hidden.py").write_text("FACTS = 1\n")
    assert declarations(tmp_path, "FACTS") == {"good": {"a": (1, None)}}


def test_unknown_name_is_a_sentence_and_survives_pickling():
    error = UnknownName("model", "nothing_alike", ["a", "b"])
    assert isinstance(error, KeyError)
    assert str(error) == "no model 'nothing_alike'; `foveal list models` shows ours, timm.list_models() timm's"
    assert str(UnknownName("path", "zzz", ["a", "b"])) == "no path 'zzz'; there are a, b"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
