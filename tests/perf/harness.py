"""Fair timing: contenders in turn within one process, CPU time beside wall time, memory from fresh processes."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from foveal.eval.measures import peak_memory_mib, reset_peak_memory


@dataclass(frozen=True)
class Timing:
    """Medians over rounds, in seconds, and the spread of wall times (largest over smallest)."""

    wall: float
    cpu: float
    spread: float


def interleaved(
    contenders: dict[str, Callable[[], object]], rounds: int = 7, at_least: float = 0.3
) -> dict[str, Timing]:
    """Times every contender once a round, A B C A B C …, after one warm-up; short ones are repeated within a turn."""
    repeats = {}
    with torch.inference_mode():
        for name, run in contenders.items():
            run()
            start = time.perf_counter()
            run()
            repeats[name] = max(1, round(at_least / (time.perf_counter() - start)))
        wall: dict[str, list[float]] = {name: [] for name in contenders}
        cpu: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds):
            for name, run in contenders.items():
                before, used = time.perf_counter(), time.process_time()
                for _ in range(repeats[name]):
                    run()
                wall[name].append((time.perf_counter() - before) / repeats[name])
                cpu[name].append((time.process_time() - used) / repeats[name])
    return {
        name: Timing(statistics.median(wall[name]), statistics.median(cpu[name]), max(wall[name]) / min(wall[name]))
        for name in contenders
    }


def extra_memory(run: Callable[[], object]) -> float:
    """MiB that a call needs above what the process held before it (Linux)."""
    with torch.inference_mode():
        # the allocator's first pages and libraries' workspaces are not the call's
        torch.zeros(256, 256) @ torch.zeros(256, 256)
        reset_peak_memory()
        before = peak_memory_mib()
        run()
    return peak_memory_mib() - before


def in_fresh_process(module: str, *arguments: str) -> float:
    """The number that ``python -m module --memory …`` prints."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--memory", *arguments], capture_output=True, text=True, check=True
    )
    return float(done.stdout.strip().splitlines()[-1])


def setting() -> str:
    """The machine's state, for the head of a table."""
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, "
        f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'unset')}"
    )
