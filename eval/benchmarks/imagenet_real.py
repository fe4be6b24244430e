"""ImageNet-1k's validation pictures with corrected labels, several for some: 46,837 have any."""

from foveal.eval.benchmark import Benchmark

BENCHMARK = Benchmark(
    name="imagenet-real",
    protocol="classification",
    reader="imagenet:read_real",
    metrics=("top1",),
    main="top1",
    counts={"images": 46_837, "classes": 1000},
    version=1,
    source="Beyer et al., Are we done with ImageNet?, 2020, arXiv:2006.07159; labels Apache-2.0, pictures for research",
    exif=False,
)
