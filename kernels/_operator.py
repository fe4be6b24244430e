"""What an attention operator is: a definition, better arranged paths, a price, and the choice between them.

An operator is a function that checks its arguments and returns them in one tuple (its *call*); `operator` turns it
into an object whose paths all take that tuple. The reference is the definition. A path says in one sentence why it
can't serve a call, or gives its price; the cheapest one that can serve runs. Choice looks at shapes, dtypes, devices
and flags only, never at values, so that `torch.compile(fullgraph=True)` sees straight code.
"""

import functools
import inspect
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveal.kernels._names import UnknownName
from foveal.kernels.cost import Cost, machine_for

log = logging.getLogger("foveal")
VARIABLE = "FOVEAL_PATH"  # e.g. FOVEAL_PATH="bilevel_routing=dense,softmax=reference"


def _from_environment() -> dict[str, str]:
    pairs = [entry.partition("=") for entry in os.environ.get(VARIABLE, "").split(",") if entry.strip()]
    bad = [name for name, sep, path in pairs if not sep or not path]
    if bad:
        raise ValueError(f"{VARIABLE} has to look like operator=path,operator=path; got {os.environ[VARIABLE]!r}")
    return {name.strip(): path.strip() for name, _, path in pairs}


_forced: dict[str, str] = _from_environment()  # process-wide, as the environment variable is


@contextmanager
def forced(**paths: str) -> Iterator[None]:
    """Within the block the named operators take the named path or raise, e.g. ``forced(softmax="reference")``.

    Holds for the whole process, not for one thread. Overrides the environment variable ``FOVEAL_PATH``.
    """
    before = dict(_forced)
    _forced.update(paths)
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)


@dataclass(frozen=True)
class Path:
    """One way to compute an operator.

    Attributes:
        name: what a user types to force it.
        run: call -> output.
        refuses: call -> a sentence why it can't serve, or None.
        cost: call -> Cost.
    """

    name: str
    run: Callable[[Any], Tensor]
    refuses: Callable[[Any], str | None]
    cost: Callable[[Any], Cost]


def never(call: Any) -> str | None:
    """The refusal of a path that serves every call."""
    return None


class Operator:
    """A named attention operator; calling it runs the cheapest path that can serve the call.

    Attributes:
        name: what a user types.
        paths: the paths by name; "reference" is always among them and serves every call.
        cost: call arguments -> Cost of the definition's arithmetic with each operand moved once.
        examples: a function giving argument sets for the conformance test.
        pinned: arguments -> the same ones with every discrete choice (a routing table, kept tokens) given instead of
            found, so that another dtype can't break a near tie the other way.
        taken: how often each path has run in this process (not counted inside compiled code).
    """

    def __init__(
        self,
        prepare: Callable[..., Any],
        *,
        reference: Callable[[Any], Tensor],
        cost: Callable[[Any], Cost],
        paths: tuple[Path, ...],
        examples: Callable[[], list[dict[str, Any]]],
        pinned: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    ):
        self.name = prepare.__name__
        self._prepare = prepare
        self._cost = cost
        self.paths = {p.name: p for p in (*paths, Path("reference", reference, never, cost))}
        self.examples = examples
        self.pinned = pinned
        self.taken: Counter[str] = Counter()
        functools.update_wrapper(self, prepare)
        self.__signature__ = inspect.signature(prepare).replace(return_annotation=Tensor)

    def __repr__(self) -> str:
        return f"<operator {self.name}: {', '.join(self.paths)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        call = self._prepare(*args, **kwargs)
        path = self._choose(call)
        if not torch.compiler.is_compiling():
            self.taken[path.name] += 1
        return path.run(call)

    def reference(self, *args: Any, **kwargs: Any) -> Tensor:
        """The definition, for the same arguments."""
        return self.paths["reference"].run(self._prepare(*args, **kwargs))

    def cost(self, *args: Any, **kwargs: Any) -> Cost:
        """The price of the definition for these arguments; tensors on the meta device will do."""
        return self._cost(self._prepare(*args, **kwargs))

    def _choose(self, call: Any) -> Path:
        name = _forced.get(self.name)
        if name is not None:
            path = self._named(name)
            refusal = path.refuses(call)
            if refusal:
                raise ValueError(f"{self.name}: the path {name!r} was asked for but {refusal}")
            return path
        best, fewest = self.paths["reference"], float("inf")
        machine = machine_for(_device_of(call))
        for path in self.paths.values():
            if path.name == "reference":
                continue
            refusal = path.refuses(call)
            if refusal is None:
                seconds = machine.seconds(path.cost(call))
                if seconds < fewest:
                    best, fewest = path, seconds
            elif not torch.compiler.is_compiling():
                log.debug("%s: not %s, because %s", self.name, path.name, refusal)
        return best

    def _named(self, name: str) -> Path:
        if name not in self.paths:
            raise UnknownName(f"path of {self.name}", name, self.paths)
        return self.paths[name]

    def why(self, *args: Any, **kwargs: Any) -> str:
        """One line a path: taken, possible (with its estimated time beside the best), or why it can't serve."""
        call = self._prepare(*args, **kwargs)
        chosen = self._choose(call)
        machine = machine_for(_device_of(call))
        lines = []
        for path in self.paths.values():
            refusal = path.refuses(call)
            if path is chosen:
                note = "taken" + (" (asked for by name)" if self.name in _forced else "")
            elif refusal:
                note = f"can't: {refusal}"
            elif path.name == "reference":
                note = "possible: the plain definition"
            else:
                ratio = machine.seconds(path.cost(call)) / machine.seconds(chosen.cost(call))
                note = f"possible: estimated {ratio:.1f}x the time of {chosen.name}"
            lines.append(f"{self.name}.{path.name}: {note}")
        return "\n".join(lines)


def why(op: Operator, *args: Any, **kwargs: Any) -> str:
    """Why ``op`` takes the path it takes for these arguments, one line a path."""
    return op.why(*args, **kwargs)


def operator(**parts: Any) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator: makes an `Operator` of a function that checks arguments and returns its call tuple."""
    return lambda prepare: Operator(prepare, **parts)


def _device_of(call: Any) -> str:
    return next(x.device.type for x in call if isinstance(x, Tensor))


def one_dtype(name: str, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v in one floating dtype: autocast's when it is on; otherwise they have to agree already.

    Raises:
        TypeError: when the dtypes differ outside autocast, or are not floating.
    """
    if torch.amp.is_autocast_available(q.device.type) and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        return q.to(dtype), k.to(dtype), v.to(dtype)
    if not (q.dtype == k.dtype == v.dtype) or not q.dtype.is_floating_point:
        raise TypeError(
            f"{name}: q, k and v need one floating dtype (or autocast), got {q.dtype}, {k.dtype} and {v.dtype}"
        )
    return q, k, v
