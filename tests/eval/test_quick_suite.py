"""The main job: the quick suite through the command line, its figures those of the catalogue, its time bounded."""

import json
import subprocess
import sys
from unittest import mock

import pytest
import torch

import foveal
from foveal.eval.benchmark import benchmarks
from foveal.weights.catalogue import rows

QUICK = [b for b in benchmarks().values() if b.quick]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    done = subprocess.run(
        [sys.executable, "-m", "foveal", "eval", "--suite", "quick", "--json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_row_is_there_whole(results):
    assert [(r["benchmark"], r["n"], r["n_failed"], r["partial"]) for r in results] == [
        (b.name, b.counts["images"], 0, False) for b in QUICK for _ in b.quick
    ]
    assert sum(r["random_weights"] for r in results) == len(QUICK)


def test_figures_are_those_of_the_rows(results):
    trained = [r for r in results if not r["random_weights"]]
    assert len(trained) >= 3
    for result in trained:
        claims = [c for c in rows()[result["weights"]].claims if c.benchmark == result["benchmark"]]
        assert claims
        for claim in claims:
            assert result["metrics"][claim.metric]["value"] == pytest.approx(claim.value, abs=1e-4)
        low, high = result["metrics"]["top1"]["interval"]
        assert low < result["metrics"]["top1"]["value"] < high
        if result["model"] == "biformer_nano":
            assert low >= 0.90


def test_random_weights_are_at_chance_and_parameters_are_alike(results):
    (random,) = [r for r in results if r["random_weights"]]
    assert random["metrics"]["top1"]["value"] < 0.25
    counts = []
    for name, weights in QUICK[0].quick:
        row = rows()[name]
        model = foveal.create_model(row.arch, **row.options)
        counts.append(sum(p.numel() for p in model.parameters()))
        assert weights in ("", "random")
    assert max(counts) <= 1.02 * min(counts)


def test_times_stay_within_the_budget(results):
    """At most 25 s a benchmark and model and 150 s in all, as the results record them."""
    seconds = [r["run"]["seconds"] for r in results]
    assert max(seconds) <= 25
    assert sum(seconds) <= 150
    assert all(r["run"]["images_per_second"] > 0 and r["run"]["peak_memory_mib"] > 0 for r in results)


def test_first_two_stages_of_the_small_biformer_keep_fewer_than_half_of_their_regions():
    from foveal.kernels.bilevel_routing import bilevel_routing

    row = rows()["biformer_nano.fashion_mnist"]
    model = foveal.create_model(row.arch, **row.options).eval()
    kept = []

    def spy(q, k, v, **options):
        call = bilevel_routing._prepare(q, k, v, **options)
        regions = call.rows * call.cols
        kept.append((1 if call.table is None else call.table.shape[-1] / regions, regions))
        return bilevel_routing(q, k, v, **options)

    with mock.patch("foveal.zoo.attention.bilevel_routing.bilevel_routing", spy), torch.no_grad():
        model(torch.randn(1, 1, 28, 28))
    assert len(kept) == sum(model.cfg.depths[:2])
    assert all(share < 0.5 and regions == 49 for share, regions in kept)
