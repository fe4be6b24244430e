"""ImageNet-Sketch: drawings of all 1,000 classes."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet-sketch",
    protocol="classification",
    reader="imagenet_variants:read_sketch",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 50_889, "classes": 1000},
    version=1,
    source="Wang et al., Learning robust global representations (ImageNet-Sketch), 2019, arXiv:1905.13549; MIT",
    exif=False,
)
