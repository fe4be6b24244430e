"""Trains a small classifier on Fashion-MNIST's official training part; this made the weights that ship.

    python weights/recipes/fashion_mnist.py biformer_nano --data DIR --output runs/nano
    python weights/recipes/fashion_mnist.py biformer_nano --option 'topk=(49, 49, None)' --data DIR --output runs/full

DIR holds train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz. 55,000 pictures train, the 5,000 of a seeded cut
validate; the official test part is never opened here. A killed run goes on where its last epoch ended.
"""

import argparse
import ast
import gzip
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import foveal

MEAN, STD = 0.2860, 0.3530  # of the training part, on values in 0..1


def read_idx(path: Path) -> torch.Tensor:
    """The array of an idx file (gz)."""
    raw = gzip.decompress(path.read_bytes())
    dims = np.frombuffer(raw, ">i4", count=raw[3], offset=4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(dims).copy())


def augment(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """Shifts by up to 2 pixels and mirrors, one draw a picture."""
    n = len(x)
    x = torch.where(torch.rand(n, 1, 1, 1, generator=draw) < 0.5, x.flip(-1), x)
    padded = F.pad(x, (2, 2, 2, 2), value=-MEAN / STD)
    dy, dx = torch.randint(0, 5, (2, n, 1), generator=draw)
    steps = torch.arange(28)
    return padded[torch.arange(n)[:, None, None], 0, (dy + steps)[:, :, None], (dx + steps)[:, None, :]][:, None]


@torch.inference_mode()
def accuracy(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    right = sum((model(x[i : i + 500]).argmax(1) == y[i : i + 500]).sum().item() for i in range(0, len(x), 500))
    return right / len(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--option", action="append", default=[], help="NAME=LITERAL handed to create_model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(args.seed)
    options = {name: ast.literal_eval(value) for name, _, value in (o.partition("=") for o in args.option)}
    model = foveal.create_model(args.model, in_chans=1, num_classes=10, **options)

    images = (read_idx(args.data / "train-images-idx3-ubyte.gz").float()[:, None] / 255 - MEAN) / STD
    labels = read_idx(args.data / "train-labels-idx1-ubyte.gz").long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(2024))  # one cut for every model
    train, val = order[:55_000], order[55_000:]

    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr)
    steps = args.epochs * (len(train) // args.batch)
    warmup = steps // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min((s + 1) / warmup, 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    draw = torch.Generator().manual_seed(args.seed)
    args.output.mkdir(parents=True, exist_ok=True)
    state, epoch, seconds = args.output / "state.pt", 0, 0.0
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if state.exists():
        saved = torch.load(state, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        draw.set_state(saved["draw"])
        torch.set_rng_state(saved["rng"])
        epoch, seconds = saved["epoch"], saved["seconds"]

    for epoch in range(epoch, args.epochs):  # noqa: B020 - resumes at the epoch that was read
        start = time.perf_counter()
        model.train()
        shuffled = train[torch.randperm(len(train), generator=draw)]
        for i in range(0, len(shuffled) - args.batch + 1, args.batch):
            batch = shuffled[i : i + args.batch]
            loss = F.cross_entropy(model(augment(images[batch], draw)), labels[batch], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        seconds += time.perf_counter() - start
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}, validation {accuracy(model, images[val], labels[val]):.4f}")
        saved = {name: part.state_dict() for name, part in parts.items()}
        saved |= {"draw": draw.get_state(), "rng": torch.get_rng_state(), "epoch": epoch + 1, "seconds": seconds}
        torch.save(saved, state.with_suffix(".new"))
        os.replace(state.with_suffix(".new"), state)
    foveal.save(model, args.output / "model.safetensors")
    facts = {"validation": accuracy(model, images[val], labels[val]), "minutes": seconds / 60, **vars(args)}
    (args.output / "facts.json").write_text(json.dumps(facts, default=str, indent=1))


if __name__ == "__main__":
    main()
