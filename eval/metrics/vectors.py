"""Readers of the protocol book's test vectors: cases with the figures that reference code gave for them."""

import json
from pathlib import Path
from typing import Any

SCHEMA = "vector-v1"
NON_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def load_vectors(path: str | Path) -> dict[str, Any]:
    """Contents of a vector file, with "inf", "-inf" and "nan" in inputs and expected figures as floats.

    Args:
        path: a JSON file with metric, schema, atol, rtol, references, and vectors of id, note, input and expected.
    Returns:
        The same structure. Names, notes and rules keep their text.
    Raises:
        ValueError: when the schema is not "vector-v1".
    Source: protocol book, section 19.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "example.json")
    ...     _ = path.write_text('{"schema": "vector-v1", "vectors": [{"id": "nan", "input": "-inf", "expected": 0}]}')
    ...     load_vectors(path)["vectors"]
    [{'id': 'nan', 'input': -inf, 'expected': 0}]
    """
    book = json.loads(Path(path).read_text(encoding="utf-8"))
    if book.get("schema") != SCHEMA:
        raise ValueError(f"load_vectors: {path} must have the schema {SCHEMA!r}, got {book.get('schema')!r}")
    for vector in book["vectors"]:
        vector["input"], vector["expected"] = _with_floats(vector["input"]), _with_floats(vector["expected"])
    return book


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_floats(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_floats(each) for each in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def agrees(got: Any, want: Any, atol: float, rtol: float) -> bool:
    """Whether two nested figures are equal in structure, and in every number up to atol + rtol * |want|.

    Args:
        got, want: numbers, arrays, text or None, alone or nested in lists, tuples and dicts. Dicts must have the same
            keys, lists the same length; an array is its nested lists.
        atol, rtol: tolerances, absolute and relative to `want`.
    Returns:
        True when all agree. NaN agrees with NaN only, inf with inf of the same sign; True and False are not numbers.

    >>> agrees({"a": [1.0, float("nan")]}, {"a": [1.000001, float("nan")]}, atol=1e-5, rtol=0)
    True
    >>> agrees([1.0], [1.0, 2.0], atol=1e-5, rtol=0)
    False
    """
    got, want = (each.tolist() if hasattr(each, "tolist") else each for each in (got, want))
    if isinstance(got, dict) and isinstance(want, dict):
        return got.keys() == want.keys() and all(agrees(got[key], want[key], atol, rtol) for key in want)
    if isinstance(got, list | tuple) and isinstance(want, list | tuple):
        return len(got) == len(want) and all(agrees(a, b, atol, rtol) for a, b in zip(got, want))
    if _is_number(got) and _is_number(want):
        # equal infinities differ by nan, so they are met by ==; a finite number is never within inf * rtol of one
        close = abs(want) != float("inf") and abs(got - want) <= atol + rtol * abs(want)
        return bool(got == want or close or (got != got and want != want))
    return type(got) is type(want) and bool(got == want)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
