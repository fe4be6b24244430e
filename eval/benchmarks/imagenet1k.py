"""ImageNet-1k's 50,000 validation pictures, in any of their usual layouts."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet1k",
    protocol="classification",
    reader="imagenet:read",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 50_000, "classes": 1000},
    version=1,
    source="Russakovsky et al., ImageNet large scale visual recognition challenge, 2015, arXiv:1409.0575; for research",
    exif=False,
)
