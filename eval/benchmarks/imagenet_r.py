"""ImageNet-R: renditions; only its 200 classes can be the answer."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet-r",
    protocol="classification",
    reader="imagenet_variants:read_r",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 30_000, "classes": 200},
    version=1,
    source="Hendrycks et al., The many faces of robustness, 2020, arXiv:2006.16241; MIT, pictures apart",
    exif=False,
)
