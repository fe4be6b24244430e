"""A user's own pictures: webdataset shards, tar files with NAME.jpg and NAME.cls."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="shards",
    protocol="classification",
    reader="shards:read",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    version=1,
    source="the user's own data: DIR/*.tar with NAME.jpg and NAME.cls",
)
