"""The command line as people type it: what it prints where, its exit codes, its one-sentence errors.

`run` starts a real process; `call` runs the same entry point in this one, where torch is loaded already.
"""

import csv
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import foveal
from foveal import cli
from foveal.eval import runner
from foveal.eval.benchmark import benchmarks
from foveal.kernels.registry import describe_operators
from foveal.tasks.classification import classify
from foveal.weights.catalogue import rows
from foveal.zoo.registry import describe_attentions, list_models

SCRIPT = shutil.which("foveal", path=str(Path(sys.executable).parent))


def run(*args, program=(sys.executable, "-m", "foveal"), **environment):
    """A finished process: returncode, stdout, stderr."""
    env = {k: v for k, v in os.environ.items() if k != "FOVEAL_DATA"} | environment
    return subprocess.run([*program, *map(str, args)], capture_output=True, encoding="utf-8", env=env, timeout=200)


@pytest.fixture
def call(capfd, monkeypatch, tmp_path):
    """The entry point in this process; gives what `run` gives. Nothing fetched is there, nor a data root."""
    monkeypatch.setenv("FOVEAL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FOVEAL_DATA", raising=False)
    monkeypatch.chdir(tmp_path)

    def entry(*args):
        monkeypatch.setattr(sys, "argv", ["foveal", *map(str, args)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(args, stopped.value.code or 0, out, err)

    return entry


def the_sentence(done, code):
    """The single line that a refused command leaves."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    return done.stderr.strip()


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a model file, a folder of 20 grey pictures in 10 classes, and results of the one on the other."""
    root = tmp_path_factory.mktemp("place")
    noise = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
    for i, pixels in enumerate(noise):
        (root / "data" / f"class {i % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / "data" / f"class {i % 10}" / f"{i}.png")
    torch.manual_seed(0)
    options = {"in_chans": 1, "num_classes": 10, "depths": (1, 1, 1), "dims": (8, 16, 32), "num_heads": (1, 2, 4)}
    foveal.save(foveal.create_model("biformer_nano", **options), root / "tiny.safetensors")
    foveal.evaluate(
        foveal.load(root / "tiny.safetensors"), "folder", data_root=root / "data", results=root / "results", threads=1
    )
    return root


# start


def test_help_and_lists_answer_without_torch():
    script = """
import sys
from foveal.cli import main
for line in sys.stdin:
    sys.argv = ["foveal", *line.split()]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, line
heavy = {"torch", "timm", "torchvision", "numpy", "PIL"} & set(sys.modules)
assert not heavy, heavy
"""
    kinds = ("models", "attentions", "operators", "benchmarks", "weights")
    lines = ["--help", "list", "weights list", *(f"list {kind}" for kind in kinds)]
    lines += [
        f"{command} --help" for command in ("list", "show", "eval", "classify", "report", "weights", "weights verify")
    ]
    lines += ["show softmax", "show folder", f"show {next(iter(rows()))}"]
    done = subprocess.run(
        [sys.executable, "-c", script], input="\n".join(lines), capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for name in ("biformer_tiny", "bilevel_routing", "fashion-mnist-test", "biformer_base.in1k"):
        assert name in done.stdout


def test_start_takes_under_half_a_second_and_both_ways_are_the_same():
    ways = [(sys.executable, "-m", "foveal"), (SCRIPT,)]

    def timed(args, program):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run(*args, program=program)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done

    for args, code in ((["--help"], 0), (["list"], 0), (["list", "modles"], 2), (["eval", "--nope"], 2)):
        times, outcomes = zip(*[timed(args, way) for way in (*ways, ways[0])])
        assert min(times) < 0.5
        assert {(done.returncode, done.stdout, done.stderr) for done in outcomes} == {
            (code, outcomes[0].stdout, outcomes[0].stderr)
        }


def test_output_that_the_terminal_cannot_show_or_nobody_reads():
    done = run("list", "operators", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    with subprocess.Popen(
        [sys.executable, "-m", "foveal", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as unread:
        unread.stdout.close()
        assert b"Traceback" not in unread.stderr.read()


# list and show


def test_lists_hold_the_registries(call):
    names = {
        "models": list_models(),
        "attentions": list(describe_attentions()),
        "operators": list(describe_operators()),
        "benchmarks": list(benchmarks()),
        "weights": list(rows()),
    }
    for kind, expected in names.items():
        done = call("list", kind, "--json")
        assert [entry["name"] for entry in json.loads(done.stdout)] == expected
        lines = call("list", kind).stdout.splitlines()
        assert lines[0].startswith("name ")
        assert [line.split()[0] for line in lines[1:]] == expected
        assert done.stderr == ""
    assert call("list", "--json").stdout == call("list", "models", "--json").stdout
    assert call("weights", "list", "--json").stdout == call("list", "weights", "--json").stdout


def test_filters(call, monkeypatch):
    def names(*args):
        return [entry["name"] for entry in json.loads(call("list", *args, "--json").stdout)]

    assert names("--pretrained") == list_models(pretrained=True)
    assert names("--commercial") == list_models(commercial=True)
    assert names("--attention", "bilevel_routing") == list_models(attention="bilevel_routing")
    assert names("--attention", "softmax") == list_models(attention="softmax")
    assert names("--task", "classification") == list_models(task="classification")
    assert names("benchmarks", "--task", "classification") == [
        b.name for b in benchmarks().values() if b.protocol == "classification"
    ]
    assert names("weights", "--commercial") == [r.name for r in rows().values() if r.commercial]
    monkeypatch.setattr(cli, "_listing", lambda *filters: [])
    done = call("list", "benchmarks", "--task", "classification")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no benchmarks match\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("biformer_tiny", {"is": "model", "parameters": "13.14 M", "attention": "bilevel_routing"}),
        ("biformer_tiny.in1k", {"is": "weights", "model": "biformer_tiny", "input": "3x224x224", "ships": False}),
        ("bilevel_routing", {"is": "operator and attention", "needs_grid": True}),
        ("fashion-mnist-test", {"is": "benchmark", "counts": "10000 images, 10 classes", "ships": True}),
        ("csv", {"is": "benchmark", "counts": "the user's own"}),
    ],
)
def test_show(call, name, said):
    facts = json.loads(call("show", name, "--json").stdout)
    assert facts["name"] == name
    assert said.items() <= facts.items()
    text = call("show", name).stdout
    assert all(key in text for key in facts)
    assert str(said.get("counts", facts["source" if "source" in facts else "page"])) in text


# eval and report


def test_eval_prints_json_alone_and_takes_expectations(place, tmp_path):
    """In a process of its own: two models' worth of options, data from the environment, exit code 1."""
    done = run(
        *("eval", place / "tiny.safetensors", "--bench", "folder", "--output", tmp_path, "--threads", 1),
        *("--json", "--expect", "top1>=0", "--expect", "mean_per_class>=1.01", "--workers", 1),
        FOVEAL_DATA=str(place / "data"),
    )
    assert done.returncode == 1
    (result,) = json.loads(done.stdout)
    (written,) = tmp_path.rglob("result.json")
    assert json.loads(written.read_text()) == result
    assert result["n"] == 20
    got = result["metrics"]["mean_per_class"]["value"]
    assert done.stderr == (f"biformer_nano (tiny.safetensors) on folder: mean_per_class is {got}, expected >= 1.01\n")


def test_eval_prints_a_table_and_where_the_results_are(place, call, tmp_path):
    odd = shutil.copy(place / "tiny.safetensors", tmp_path / "tiny[red]:cat:.safetensors")
    command = ["eval", odd, place / "tiny.safetensors", "--bench", "folder", "--data", place / "data"]
    done = call(*command, "--output", tmp_path / "re[bold]sults", "--threads", 1, "--limit", 7)
    assert done.returncode == 0
    header, *lines = done.stdout.splitlines()
    assert header.startswith("benchmark")
    assert "top1 % [95 % interval]" in header
    assert ["(tiny[red]:cat:.safetensors)" in lines[0], "(tiny.safetensors)" in lines[1]] == [True, True]
    assert all("partial" in line for line in lines)
    assert done.stderr == f"results are in {tmp_path / 're[bold]sults'}\n"


def test_eval_with_random_weights_is_seeded_and_says_so(place, call, tmp_path):
    first, again = (
        json.loads(
            call(
                *("eval", "biformer_nano", "--weights", "random", "--bench", "fashion-mnist-test", "--limit", 20),
                *("--json", "--output", tmp_path / name, "--threads", 1, "--data", place),
            ).stdout
        )[0]
        for name in ("one", "two")
    )
    assert (first["random_weights"], first["weights"]) == (True, "random weights")
    assert first["state_sha256"] == again["state_sha256"]
    assert first["options"] == {"num_classes": 10}


def test_eval_stopped_by_the_user(place, call, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "evaluate", stop)
    done = call("eval", place / "tiny.safetensors", "--bench", "folder", "--data", place / "data")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "stopped; what is stored stays, the same command goes on from there\n"


def test_report_in_every_form(place, call):
    (stored,) = (json.loads(path.read_text()) for path in (place / "results").rglob("result.json"))
    top1 = stored["metrics"]["top1"]["value"]
    done = {form: call("report", place / "results", "--format", form) for form in ("table", "md", "csv")}
    assert all((each.returncode, each.stderr) == (0, "") for each in done.values())
    assert len(done["table"].stdout.splitlines()) == 2
    assert f"{100 * top1:.2f} [" in done["table"].stdout
    assert done["md"].stdout.splitlines()[1].startswith("| --- | --- |")
    lines = list(csv.DictReader(io.StringIO(done["csv"].stdout)))
    assert [line["metric"] for line in lines] == list(stored["metrics"])
    assert float(lines[0]["value"]) == top1
    assert json.loads(call("report", place / "results", "--json").stdout) == [stored]
    assert call("report", place / "results", "--expect", "top1>=0").returncode == 0
    missed = call("report", place / "results", "--expect", "top1>=1.5", "--expect", "ece>=2")
    assert missed.returncode == 1
    assert len(missed.stderr.splitlines()) == 2


def test_narrow_terminal_loses_no_figure(place, call, monkeypatch):
    wide = call("report", place / "results").stdout.splitlines()[1].split()
    monkeypatch.setenv("FORCE_COLOR", "1")  # taken to be a terminal
    monkeypatch.setenv("COLUMNS", "60")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", call("report", place / "results").stdout).splitlines()
    assert max(map(len, lines)) <= 60
    words = [word for line in lines for word in line.split()]
    assert set(wide) <= set(words)
    assert "mean_per_class" in words
    listed = re.sub(r"\x1b\[[0-9;]*m", "", call("list", "operators").stdout)
    assert "…" not in listed
    assert {line.split()[0] for line in listed.splitlines()} >= set(describe_operators())


# classify and weights


def test_classify(place, call):
    picture = place / "data" / "class 3" / "3.png"
    expected = classify(foveal.load(place / "tiny.safetensors"), picture, topk=3)
    done = call("classify", picture, "--model", place / "tiny.safetensors", "--top", 3, "--json")
    assert json.loads(done.stdout) == [vars(answer) for answer in expected]
    assert done.stderr == ""
    lines = call("classify", picture, "--model", place / "tiny.safetensors", "--top", 2).stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["class", "probability"],
        *([answer.label, f"{answer.probability:.4f}"] for answer in expected[:2]),
    ]


def test_broken_picture_is_one_sentence_in_a_process_of_its_own(place, tmp_path):
    picture = tmp_path / "broken.png"
    picture.write_bytes((place / "data" / "class 3" / "3.png").read_bytes()[:300])
    sentence = the_sentence(run("classify", picture, "--model", place / "tiny.safetensors"), 2)
    assert "broken.png' is truncated" in sentence


def test_weights_verify(call, tmp_path):
    absent = [r for r in rows().values() if r.path is None]
    done = call("weights", "verify", "--json")
    assert done.returncode == 0
    outcome = json.loads(done.stdout)
    assert outcome.keys() == rows().keys()
    assert {outcome[r.name] for r in absent} == {"not here"}
    assert all("loads strictly" in said for name, said in outcome.items() if rows()[name] not in absent)

    named = call("weights", "verify", absent[0].name)
    assert named.returncode == 1
    assert f"the file {absent[0].file} is not here; get it from {absent[0].page}" in named.stdout
    (tmp_path / "home" / "weights").mkdir(parents=True)
    (tmp_path / "home" / "weights" / absent[0].file).write_bytes(b"no weights")
    broken = call("weights", "verify")
    assert broken.returncode == 1
    assert f"{absent[0].name} " in broken.stdout
    assert "FAILED: " in broken.stdout
    assert "Traceback" not in broken.stderr


# mistakes


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("list modles", "the kind of list is one of models, attentions, operators, benchmarks, weights; got 'modles'"),
        ("list --attention sofmax", "no attention 'sofmax'; did you mean softmax"),
        ("list --task clasification", "got 'clasification'"),
        ("list operators --commercial", "--commercial does not filter operators; it is for models, weights"),
        ("show bifomer_tiny", "no name 'bifomer_tiny'; did you mean biformer_tiny"),
        ("eval bifomer_nano --bench fashion-mnist-test", "no model 'bifomer_nano'; did you mean biformer_nano"),
        ("eval biformer_tiny.in22k --bench fashion-mnist-test", "did you mean biformer_tiny.in1k"),
        ("eval biformer_nano --bench foldr", "no benchmark 'foldr'; did you mean folder"),
        ("eval biformer_nano --bench fashion-mnist", "did you mean fashion-mnist-test"),
        (
            "eval runs/tiny.safetensors --bench fashion-mnist-test",
            "runs/tiny.safetensors: there is no such file or folder",
        ),
        ("eval tiny.pth --bench fashion-mnist-test", "tiny.pth: there is no such file or folder"),
        ("eval --suite quik", "--suite is one of quick; got 'quik'"),
        ("eval biformer_nano", "nothing to evaluate: give a model and --bench NAME, or --suite quick"),
        ("eval biformer_nano --bench folder --expect top1>0.9", "--expect is written NAME>=VALUE"),
        ("eval biformer_nano --bench folder --expect top_1>=0.9", "no metric 'top_1' here; there are top1, top5"),
        ("report --format markdown", "--format is one of table, md, csv; got 'markdown'"),
        ("weights verify biformer_tiny.in1", "no weight 'biformer_tiny.in1'; did you mean biformer_tiny.in1k"),
        ("classify nowhere.png --model bifomer_nano", "no model 'bifomer_nano'; did you mean biformer_nano"),
    ],
)
def test_misspelt(call, command, said):
    assert said in the_sentence(call(*command.split()), 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--precision", "fp8"], "precision is one of fp32, bf16, fp16, got 'fp8'"),
        (["--device", "cdua"], "device 'cdua' can't be used here"),
        (["--on-bad", "ignore"], "on_bad is one of error, skip, substitute, got 'ignore'"),
        (["--weights", "nowhere.pth"], "nowhere.pth: there is no such file"),
    ],
)
def test_misspelt_options_of_eval(place, call, options, said):
    model = "biformer_nano" if "--weights" in options else place / "tiny.safetensors"
    done = call("eval", model, "--bench", "folder", "--data", place / "data", *options)
    assert said in the_sentence(done, 2)


def test_model_and_pictures_that_do_not_fit(place, call, tmp_path):
    shutil.copytree(place / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / "class 3")
    command = ["eval", place / "tiny.safetensors", "--bench", "folder", "--data", tmp_path / "data"]
    assert "the model gives 10 classes but folder has 9" in the_sentence(call(*command), 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_picture_in_an_evaluation(place, call, tmp_path, workers):
    shutil.copytree(place / "data", tmp_path / "data")
    (tmp_path / "data" / "class 3" / "3.png").write_text("<html>not found</html>")
    command = ["eval", place / "tiny.safetensors", "--bench", "folder", "--data", tmp_path / "data"]
    sentence = the_sentence(call(*command, "--workers", workers), 2)
    assert "3.png' is not a picture but an HTML page" in sentence
    skipped = call(*command, "--on-bad", "skip", "--workers", workers)
    assert skipped.returncode == 0
    assert "1 unreadable (skip)" in skipped.stdout


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("eval biformer_nano --bench folder", "folder: needs its data; say where it is with --data-root DIR"),
        ("eval biformer_nano --bench folder --data nowhere", "nowhere: no such folder; expected DIR/CLASS/PICTURE"),
        ("eval biformer_nano --bench csv --data nowhere.csv", "nowhere.csv: no such csv file"),
        ("report nowhere", "nowhere: no result.json in it"),
    ],
)
def test_data_missing(call, command, said):
    assert said in the_sentence(call(*command.split()), 3)


@pytest.mark.parametrize(
    "command",
    ["frobnicate", "list --nope", "show", "classify", "eval m --batch-size 0", "eval m --limit few", "weights x"],
)
def test_usage_errors(call, command):
    done = call(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: foveal" in done.stderr
    assert "Error: " in done.stderr
    assert "Traceback" not in done.stderr


def test_classify_in_another_precision(call, tmp_path):
    from PIL import Image

    Image.new("L", (28, 28), 90).save(tmp_path / "grey.png")
    full, half = (
        json.loads(call("classify", str(tmp_path / "grey.png"), "--device", "cpu", "--precision", p, "--json").stdout)
        for p in ("fp32", "bf16")
    )
    assert half[0]["label"] == full[0]["label"]
    assert 0 < abs(half[0]["probability"] - full[0]["probability"]) < 0.1
    wrong = call("classify", str(tmp_path / "grey.png"), "--precision", "fp8")
    assert (wrong.returncode, "precision is one of fp32, bf16, fp16" in wrong.stderr) == (2, True)
