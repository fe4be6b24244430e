"""Fashion-MNIST's official test part: 10,000 grey product pictures of 28x28 in 10 classes."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="fashion-mnist-test",
    protocol="classification",
    reader="fashion_mnist:read",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    counts={"images": 10_000, "classes": 10},
    version=1,
    source="Xiao, Rasul, Vollgraf, Fashion-MNIST, 2017, arXiv:1708.07747; MIT; official test part, shipped unchanged",
    embedded=True,
    quick=(
        ("biformer_nano.fashion_mnist", ""),
        ("biformer_nano.fashion_mnist_full", ""),
        ("vit_tiny_patch16_224.fashion_mnist", ""),
        ("biformer_nano.fashion_mnist", "random"),
    ),
)
