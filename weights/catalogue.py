"""The catalogue: rows of facts about weights, read from ``catalogue/*.toml`` and checked as data."""

import functools
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BUNDLED = FOLDER / "bundled"
COMMERCIAL = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "public domain")


@dataclass(frozen=True)
class Preprocessing:
    """What turns a picture into the input that weights were trained for.

    Attributes:
        size: side of the square input in pixels.
        mean, std: per channel, on values in 0..1; one entry means grey input.
        interpolation: "bicubic" or "bilinear", with antialiasing.
        crop_pct: the resize goes to floor(size / crop_pct) before the centre crop.
        crop_mode: "shorter" keeps the aspect ratio and resizes the shorter side, "squash" resizes both.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "shorter"

    def __post_init__(self) -> None:
        if self.interpolation not in ("bicubic", "bilinear") or self.crop_mode not in ("shorter", "squash"):
            raise ValueError(f"preprocessing: unknown interpolation or crop_mode in {self}")
        if len(self.mean) != len(self.std) or not 0 < self.crop_pct <= 1:
            raise ValueError(f"preprocessing: mean and std of one length and crop_pct in (0, 1] are needed, got {self}")


@dataclass(frozen=True)
class Claim:
    """A figure that somebody published for these weights.

    Attributes:
        benchmark, metric, value: value is a fraction.
        source: who says so.
    """

    benchmark: str
    metric: str
    value: float
    source: str


@dataclass(frozen=True)
class Row:
    """One set of weights and all that changes the meaning of its numbers.

    Attributes:
        name: ``arch.tag``, what a user types.
        arch: model name; options: arguments it is built with.
        preprocessing: the input the weights expect.
        file: name of the original file; bundled ones lie in this package.
        url: direct https address, or "" when there is none; page: where a person finds the file.
        sha256: of the file, or "" when nobody has verified it.
        licences: of code, weights and training data.
        labels: class names in order of the outputs.
        claims: published figures.
        trained_by: the command that made weights of our own.
        probe: first outputs for the probe input, see `foveal weights verify`.
        notes: anything else a user should know.
    """

    name: str
    arch: str
    preprocessing: Preprocessing
    file: str
    page: str
    licences: dict[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    sha256: str = ""
    labels: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    trained_by: str = ""
    probe: tuple[float, ...] = ()
    notes: str = ""

    @property
    def tag(self) -> str:
        return self.name.partition(".")[2]

    @property
    def path(self) -> Path | None:
        """Where the file lies inside the package, if it ships."""
        path = BUNDLED / self.file
        return path if path.is_file() else None

    @property
    def commercial(self) -> bool:
        """All three licences are known to allow commercial use."""
        return all(self.licences[part] in COMMERCIAL for part in ("code", "weights", "data"))


def from_json(facts: dict[str, Any]) -> dict[str, Any]:
    """Settings read from JSON or TOML: arrays become tuples, and the string "full" None (TOML has no null)."""
    return {name: _tuples(value) for name, value in facts.items()}


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_tuples(v) for v in value)
    return None if value == "full" else value


def parse(name: str, facts: dict[str, Any], where: Path) -> Row:
    """A row from its TOML table.

    Raises:
        ValueError: naming file, row and what is wrong.
    """
    try:
        unknown = facts.keys() - {f.name for f in fields(Row)}
        if unknown:
            raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
        facts = dict(facts)
        facts["preprocessing"] = Preprocessing(**from_json(facts["preprocessing"]))
        facts["options"] = from_json(facts.get("options", {}))
        facts["claims"] = tuple(Claim(**c) for c in facts.get("claims", ()))
        facts["labels"], facts["probe"] = tuple(facts.get("labels", ())), tuple(facts.get("probe", ()))
        row = Row(name=name, **facts)
        missing = {"code", "weights", "data"} - row.licences.keys()
        if missing:
            raise ValueError(f"licences need {', '.join(sorted(missing))}")
        if not name.startswith(row.arch + "."):
            raise ValueError(f"the name has to be {row.arch}.<tag>")
        return row
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{where.name}: weights row {name!r}: {error}") from error


@functools.cache
def rows() -> dict[str, Row]:
    """All rows by name, in the order of the files; the first row of a model is its default tag."""
    found: dict[str, Row] = {}
    for path in sorted((FOLDER / "catalogue").glob("*.toml")):
        for name, facts in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if name in found:
                raise ValueError(f"{path.name}: weights row {name!r} is defined twice")
            found[name] = parse(name, facts, path)
    return found


def rows_of(arch: str) -> list[Row]:
    """Rows of one model, the default first."""
    return [row for row in rows().values() if row.arch == arch]
