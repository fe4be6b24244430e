"""A user's own pictures: a csv file with the columns path and label."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="csv",
    protocol="classification",
    reader="csv_file:read",
    metrics=("top1", "top5", "mean_per_class", "ece", "brier", "nll"),
    main="top1",
    version=1,
    source="the user's own data: a csv file with the columns path and label",
)
