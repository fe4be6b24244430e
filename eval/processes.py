"""Several processes on one evaluation: who takes which block, and when all are done.

Started with ``torchrun --nproc_per_node N -m foveal eval …`` or ``accelerate launch``, every process runs the same
command; blocks of items are dealt whole, so that each is computed exactly as by one process alone.
"""

import datetime
import os
import re
from dataclasses import dataclass

import torch.distributed as dist


@dataclass(frozen=True)
class Share:
    """The part of the blocks that this process takes.

    Attributes:
        rank, world: this process among those started together.
        shard, shards: this machine's part of a run that is split by hand (``--shard 2/3`` is shard 1 of 3).
    """

    rank: int = 0
    world: int = 1
    shard: int = 0
    shards: int = 1

    @property
    def process(self) -> int:
        """A number that no other process of the run has."""
        return self.rank * self.shards + self.shard

    @property
    def first(self) -> bool:
        """Whether this process speaks for those started together."""
        return self.rank == 0

    def wait(self) -> None:
        """Returns when all processes that were started together have come here."""
        if self.world > 1:
            dist.barrier()


def parse_shard(text: str) -> tuple[int, int]:
    """``2/3`` as (1, 3): the second of three shards.

    Raises:
        ValueError: when it is written differently.

    >>> parse_shard("2/3")
    (1, 3)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found.group(1)) <= int(found.group(2)):
        raise ValueError(f"--shard is written I/N with I from 1 to N, for example 1/2; got {text!r}")
    return int(found.group(1)) - 1, int(found.group(2))


def launched() -> tuple[int, int]:
    """Rank and number of the processes that a launcher started, (0, 1) without one."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def join(shard: str | None = None, patience: float = 7 * 24 * 3600) -> Share:
    """The share of this process; joins the others when a launcher started several.

    Args:
        shard: ``I/N`` of a run split by hand.
        patience: seconds to wait for the slowest process.
    """
    rank, world = launched()
    index, shards = parse_shard(shard) if shard else (0, 1)
    if world > 1 and not dist.is_initialized():
        # what is exchanged is only "I am done", so gloo serves on every machine
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=patience))
    return Share(rank, world, index, shards)
