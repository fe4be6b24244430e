"""A user's own pictures: one folder a class."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="folder",
    protocol="classification",
    reader="folder:read",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    version=1,
    source="the user's own data: DIR/CLASS/PICTURE",
)
