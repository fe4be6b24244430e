"""Speed and memory of routed attention and BiFormer against the original arrangement, at equal outputs.

    OMP_WAIT_POLICY=PASSIVE python -m tests.perf.routing            the table
    OMP_WAIT_POLICY=PASSIVE python -m tests.perf.routing --paths    every path of the operator beside its estimate

A speed is printed only beside a green comparison. The rival model counts only if its CPU time over timm's swin_tiny
is within 15 % of the measured fact.
"""

import argparse

import timm
import torch

import foveal
from foveal.kernels import bilevel_routing as kernel
from foveal.kernels._operator import forced
from foveal.kernels.cost import CPU
from tests.perf.harness import extra_memory, in_fresh_process, interleaved, setting
from tests.perf.originals import bilevel_routing as original

SHAPES = {  # batch, side, dim, heads, topk; 7x7 regions
    "stage 0 at 224": (8, 56, 64, 2, 1),
    "stage 1 at 224": (8, 28, 128, 4, 4),
    "stage 2 at 224": (8, 14, 256, 8, 16),
    "stage 0 at 896": (1, 224, 64, 2, 1),
    "stage 1 at 896": (1, 112, 128, 4, 4),
    "stage 2 at 896": (1, 56, 256, 8, 16),
}
MODELS = {"biformer_tiny 224": (8, 224), "biformer_tiny 896": (1, 896)}
SWIN_RATIO = {"biformer_tiny 224": 1.16}  # process CPU time of the original over timm's swin_tiny
MODULE = "module, stage 2 at 224"


def _operator(name: str):
    batch, side, dim, heads, topk = SHAPES[name]
    draw = torch.Generator().manual_seed(0)
    # q, k and v are parts of one projection, as in the model
    q, k, v = torch.randn(batch, side, side, 3 * dim, generator=draw).chunk(3, -1)
    arguments = {"num_heads": heads, "regions": (7, 7), "topk": topk}
    return (
        lambda: kernel.bilevel_routing(q, k, v, **arguments),
        lambda: original.bilevel_routing(q, k, v, **arguments),
    )


def _module():
    from foveal.zoo.attention.bilevel_routing import BilevelRoutingAttention

    torch.manual_seed(0)
    module = BilevelRoutingAttention(256, 8, topk=16).eval()
    x = torch.randn(8, 196, 256)

    def rival():
        with original.original_arrangement():
            return module(x, grid=(14, 14))

    return lambda: module(x, grid=(14, 14)), rival


def _model(name: str):
    batch, side = MODELS[name]
    torch.manual_seed(0)
    model = foveal.create_model(name.split()[0]).eval()
    x = torch.randn(batch, 3, side, side)

    def rival():
        with original.original_arrangement():
            return model(x)

    return lambda: model(x), rival


def contenders(name: str):
    """(ours, the original arrangement) for a row of the table."""
    if name == MODULE:
        return _module()
    return _model(name) if name in MODELS else _operator(name)


def row(name: str, rounds: int) -> None:
    """Prints one row: ratios of time and memory, after checking equality."""
    ours, rival = contenders(name)
    with torch.inference_mode():
        a, b = ours(), rival()
    worst = ((a - b).abs() / (b.std() + b.abs())).max().item()
    if worst > 1e-4:
        print(f"{name}: DIFFERENT by {worst:.1e}, no speed is given")
        return
    runs = {"ours": ours, "original": rival}
    if name in MODELS and name in SWIN_RATIO:
        swin = timm.create_model("swin_tiny_patch4_window7_224").eval()
        x = torch.randn(MODELS[name][0], 3, 224, 224)
        runs["swin"] = lambda: swin(x)
    t = interleaved(runs, rounds)
    mine, theirs = (in_fresh_process("tests.perf.routing", name, who) for who in ("ours", "original"))
    text = (
        f"{name}: {t['original'].wall / t['ours'].wall:.2f}x wall, {t['original'].cpu / t['ours'].cpu:.2f}x CPU, "
        f"{1e3 * t['ours'].wall:.1f} ms against {1e3 * t['original'].wall:.1f} ms (spread {t['ours'].spread:.2f}, "
        f"{t['original'].spread:.2f}); memory {mine:.1f} MiB against {theirs:.1f} MiB ({mine / theirs:.2f}); "
        f"largest difference {worst:.0e}"
    )
    if "swin" in t:
        rival_ratio, our_ratio = t["original"].cpu / t["swin"].cpu, t["ours"].cpu / t["swin"].cpu
        fair = abs(rival_ratio / SWIN_RATIO[name] - 1) <= 0.15
        text += (
            f"; CPU time over timm swin_tiny: ours {our_ratio:.2f}, original {rival_ratio:.2f} "
            f"(fact {SWIN_RATIO[name]}: {'the rival counts' if fair else 'THE RIVAL DOES NOT COUNT'})"
        )
    print(text, flush=True)


def paths(name: str) -> None:
    """Prints the measured and the estimated time of every path of the operator."""
    ours, _ = _operator(name)
    batch, side, dim, heads, topk = SHAPES[name]
    x = torch.empty(batch, side, side, dim)
    call = kernel.bilevel_routing._prepare(x, x, x, num_heads=heads, regions=(7, 7), topk=topk)

    def through(path: str):
        def run():
            with forced(bilevel_routing=path):
                return ours()

        return run

    usable = [p for p in kernel.bilevel_routing.paths.values() if p.refuses(call) is None]
    times = interleaved({p.name: through(p.name) for p in usable}, 5)
    for p in usable:
        estimate = 1e3 * CPU.seconds(p.cost(call))
        print(f"{name} {p.name}: {1e3 * times[p.name].wall:.2f} ms, estimated {estimate:.2f} ms, {p.cost(call)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows; all when none is named")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--paths", action="store_true")
    parser.add_argument("--memory", action="store_true", help="internal: NAME and ours|original, prints MiB")
    args = parser.parse_args()
    torch.set_num_threads(2)
    if args.memory:
        name, who = args.names
        print(extra_memory(contenders(name)[who == "original"]))
        return
    print(setting(), flush=True)
    for name in args.names or (SHAPES if args.paths else [*SHAPES, MODULE, *MODELS]):
        if args.paths:
            paths(name)
        else:
            row(name, args.rounds)


if __name__ == "__main__":
    main()
