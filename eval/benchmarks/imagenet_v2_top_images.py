"""ImageNet-V2, top images: the new pictures that most annotators chose."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet-v2-top-images",
    protocol="classification",
    reader="imagenet_variants:read_v2_top_images",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 10_000, "classes": 1000},
    version=1,
    source="Recht et al., Do ImageNet classifiers generalize to ImageNet?, 2019, arXiv:1902.10811; MIT, pictures apart",
    exif=False,
)
