"""What we build for each parity case. A module of this folder has a table ``ADAPTERS`` from case names to functions."""

import fnmatch
import importlib
import pkgutil

import torch

from tests.parity.adapters._common import Adapter, Case, Fill, Tensors

ADAPTERS: dict[str, Adapter] = {}
for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        ADAPTERS |= importlib.import_module(f"{__name__}.{_module.name}").ADAPTERS


def adapter_for(name: str) -> Adapter | None:
    """The function for a case name, or None when its system is not built yet."""
    found = [adapter for pattern, adapter in ADAPTERS.items() if fnmatch.fnmatchcase(name, pattern)]
    return found[0] if found else None


@torch.no_grad()
def run(case: Case, adapter: Adapter, fill: Fill, inputs: Tensors) -> Tensors:
    """Outputs of our build of a case."""
    return adapter(case, fill, inputs)
