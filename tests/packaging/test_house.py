"""The shape of the house: arrows between folders, links, linting, types, doctests, and no effect of importing."""

import ast
import doctest
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernels", "zoo", "tasks", "weights", "eval")
MAY_IMPORT = {
    "kernels": {"kernels"},
    "weights": {"weights"},
    "zoo": {"kernels", "weights", "zoo"},
    "tasks": {"kernels", "weights", "zoo", "tasks"},
    "eval": set(FOLDERS),
}


def _modules(folder):
    """Modules of a folder; recipes are scripts that use the package from outside."""
    return [p for p in sorted((ROOT / folder).rglob("*.py")) if "recipes" not in p.parts]


def _name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("foveal", *parts)).removesuffix(".__init__")


def _imported(path):
    """What a module imports of foveal, anywhere in it; "" is the front door."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module] if node.module != "foveal" else [f"foveal.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        else:
            continue
        yield from (n.partition(".")[2].partition(".")[0] for n in names if n and n.partition(".")[0] == "foveal")


@pytest.mark.parametrize("folder", FOLDERS)
def test_arrows_go_one_way(folder):
    wrong = {str(p.relative_to(ROOT)): sorted(set(_imported(p)) - MAY_IMPORT[folder]) for p in _modules(folder)}
    assert not {path: names for path, names in wrong.items() if names}


def test_a_wrong_arrow_would_be_seen(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from foveal.eval.runner import evaluate\n    import foveal\n")
    assert set(_imported(bad)) == {"eval", ""}


@pytest.mark.parametrize("folder", FOLDERS)
def test_folders_are_linked_and_typed(folder):
    link = ROOT / "src" / "foveal" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{folder}"
    assert (ROOT / folder / "py.typed").is_file()
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize("folder", FOLDERS)
def test_doctests(folder):
    attempted = 0
    for path in _modules(folder):
        outcome = doctest.testmod(importlib.import_module(_name(path)))
        assert outcome.failed == 0, path
        attempted += outcome.attempted
    assert attempted > 0


def test_doctests_of_the_front_door():
    assert doctest.testmod(importlib.import_module("foveal.describe")).failed == 0


def _python(code, **more):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **more)


def test_transformers_and_diffusers_import_with_the_root_as_working_directory():
    code = (
        "import transformers.modeling_utils, diffusers.models.modeling_utils, foveal.kernels.softmax;"
        "import importlib.util; print(importlib.util.find_spec('kernels').origin)"
    )
    done = _python(code, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_import_has_no_effect_but_the_registry():
    code = (
        "import sys, random; before = random.getstate(); import foveal;"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules and 'PIL' not in sys.modules;"
        "assert random.getstate() == before; import torch; g = torch.get_num_threads(), torch.is_grad_enabled();"
        "import foveal.eval.runner, foveal.zoo.create; assert g == (torch.get_num_threads(), torch.is_grad_enabled());"
        "import timm; assert timm.is_model('biformer_tiny')"
    )
    done = _python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_version_is_the_package_s():
    import tomllib

    import foveal

    facts = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert foveal.__version__ == facts["project"]["version"]
    assert f"version: {foveal.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {foveal.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_public_name_of_the_front_door_resolves():
    import foveal

    for name in foveal.__all__:
        assert getattr(foveal, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        foveal.nothing  # noqa: B018


def test_ruff():
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "."]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_mypy(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
