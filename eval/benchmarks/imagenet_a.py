"""ImageNet-A: natural adversarial examples; only its 200 classes can be the answer."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet-a",
    protocol="classification",
    reader="imagenet_variants:read_a",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 7500, "classes": 200},
    version=1,
    source="Hendrycks et al., Natural adversarial examples, 2019, arXiv:1907.07174; MIT, pictures apart",
    exif=False,
)
