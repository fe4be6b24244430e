"""Names: what a folder of modules declares, read without importing it, and a kind answer to a wrong name."""

import ast
import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LISTED = ("model", "attention", "operator", "benchmark", "weight")


class UnknownName(KeyError):
    """A name that no registry entry has; its text is one sentence with the nearest names.

    >>> print(UnknownName("model", "bifomer_tiny", ["biformer_tiny", "resnet18"]))
    no model 'bifomer_tiny'; did you mean biformer_tiny?
    >>> print(UnknownName("prefix", "x:", ["timm:"], hint="there is timm:"))
    no prefix 'x:'; there is timm:
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        known = list(known)
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        asked = f"did you mean {', '.join(near)}?" if near else ""
        hint = " ".join(filter(None, (asked, hint))) or _all(kind, known)
        self.text = f"no {kind} {name!r}; {hint}"
        super().__init__(self.text)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.text,)


def _all(kind: str, known: list[str]) -> str:
    if kind == "model":
        return "`foveal list models` shows ours, timm.list_models() timm's"
    if kind in LISTED:
        return f"`foveal list {kind}s` shows what there is"
    return f"there are {', '.join(known[:12])}{', …' if len(known) > 12 else ''}"


def _restore(text: str) -> UnknownName:
    error = UnknownName.__new__(UnknownName)
    KeyError.__init__(error, text)
    error.text = text
    return error


def declared(path: Path, variable: str) -> Any:
    """The literal that a module assigns to ``variable`` at its top level, or None.

    The module is parsed, not run, so that lists can be printed without importing torch.
    Raises:
        ValueError: when the value is not a plain literal.
    """
    source = path.read_text(encoding="utf-8")
    if variable not in source:
        return None
    for node in ast.parse(source).body:
        if isinstance(node, ast.AnnAssign):
            targets: list[ast.expr] = [node.target]
        elif isinstance(node, ast.Assign):
            targets = node.targets
        else:
            continue
        if any(isinstance(t, ast.Name) and t.id == variable for t in targets) and node.value is not None:
            try:
                return ast.literal_eval(node.value)
            except ValueError as error:
                raise ValueError(f"{path}: {variable} has to be a plain literal, it is read without import") from error
    return None


def declarations(folder: Path, variable: str) -> dict[str, Any]:
    """``{module name: literal}`` of every module in ``folder`` that assigns ``variable``, in order of name."""
    found = {p.stem: declared(p, variable) for p in sorted(folder.glob("*.py")) if not p.stem.startswith("_")}
    return {name: value for name, value in found.items() if value is not None}
