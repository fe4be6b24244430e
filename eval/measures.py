"""Peak memory of the process and the facts of the machine that a result has to name."""

import os
import platform
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")


def reset_peak_memory() -> None:
    """Starts a new peak where the system can (Linux); elsewhere the peak is that of the whole process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_memory_mib() -> float:
    """Largest resident memory of this process since `reset_peak_memory`, in MiB."""
    if STATUS.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text())
        if found:
            return int(found.group(1)) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if platform.system() == "Darwin" else 1 << 10)


def processor() -> str:
    """Name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text())
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()


def foveal_version() -> str:
    """Version of this package."""
    return version("foveal")


def versions() -> dict[str, Any]:
    """Versions of what computed a figure."""
    import numpy
    import PIL
    import timm
    import torch
    import torchvision

    return {
        "foveal": foveal_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
        "numpy": numpy.__version__,
        "pillow": PIL.__version__,
        "processor": processor(),
        "cpus": os.cpu_count(),
    }
