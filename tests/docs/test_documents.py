"""The documents are true: tables fresh, code blocks run, commands those that CI runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.tables import DOCUMENTS, ROOT, fresh

TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{path.name}-{i}")
    for path in TEXTS
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S))
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_tables_are_fresh(path):
    text = path.read_text(encoding="utf-8")
    assert text == fresh(text), "run `python -m tests.docs`"


def test_a_stale_table_would_be_seen():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert fresh(text.replace("`biformer_tiny`", "`biformer_tini`", 1)) == text


@pytest.mark.parametrize("code", BLOCKS)
def test_code_blocks_run(code, tmp_path):
    code = code.replace("/tmp/foveal", str(tmp_path / "foveal"))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout


def test_ci_runs_the_second_block_of_the_readme():
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    assert blocks[0].strip().endswith("foveal eval --suite quick")
    assert blocks[1].strip() == "python -m pip install -e '.[test]' && python -m pytest"
    awk = re.search(r"\$\((awk .*)\)\n", (ROOT / ".ci" / "run").read_text()).group(1)
    taken = subprocess.run(["bash", "-c", awk], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert taken.strip() == blocks[1].strip()


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
        assert (Path(path).parent / target).exists(), target
