"""Every situation of the case book whose feature exists has a test that carries its id."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_existing_features_have_their_cases():
    """``tests/data/cases.json`` names, for each id, the file or folder that is there once its feature is."""
    features = json.loads((ROOT / "tests/data/cases.json").read_text())
    named = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        named |= {f"BC-{number}" for number in re.findall(r"def test_bc(\d\d)_", path.read_text())}
    lacking = [case for case, feature in features.items() if (ROOT / feature).exists() and case not in named]
    assert not lacking
    assert named <= set(features)
