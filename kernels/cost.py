"""What a call costs, from shapes alone: arithmetic, traffic, memory; and the time a CPU or GPU would need for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The price of one call.

    Attributes:
        flops: floating point operations; one multiply-add counts as 2.
        bytes: memory traffic in bytes, each tensor that has to be read or written counted once a pass.
        peak_bytes: memory needed at once beyond inputs and output, in bytes.
        problems: independent small matrix problems; each has a fixed price whatever its size.

    >>> Cost(2, 3) + Cost(1, 1, peak_bytes=8)
    Cost(flops=3, bytes=4, peak_bytes=8, problems=0)
    """

    flops: int
    bytes: int
    peak_bytes: int = 0
    problems: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        """Both calls, one after the other."""
        return Cost(
            self.flops + other.flops,
            self.bytes + other.bytes,
            max(self.peak_bytes, other.peak_bytes),
            self.problems + other.problems,
        )


@dataclass(frozen=True)
class Machine:
    """Rates used only to rank the paths of one operator: their ratios matter, not their absolute values."""

    flops_per_second: float
    bytes_per_second: float
    seconds_per_problem: float

    def seconds(self, cost: Cost) -> float:
        """Estimated time of a call on this kind of machine, in seconds."""
        return (
            cost.flops / self.flops_per_second
            + cost.bytes / self.bytes_per_second
            + cost.problems * self.seconds_per_problem
        )


# Two CPU threads with 256-bit arithmetic, fitted to timings of `python -m tests.perf.routing --paths` (see there).
CPU = Machine(flops_per_second=60e9, bytes_per_second=8e9, seconds_per_problem=1e-6)
# A recent data-centre GPU running small float32 problems; not fitted yet, only the order of magnitude is meant.
GPU = Machine(flops_per_second=20e12, bytes_per_second=2e12, seconds_per_problem=2e-9)


def machine_for(device_type: str) -> Machine:
    """The rates that rank paths on a device of this type."""
    return GPU if device_type in ("cuda", "mps", "xpu") else CPU
