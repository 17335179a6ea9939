"""Ablations: the variants of each study, separate models, paired differences, and figures that are kept."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from likewise.errors import InputError
from likewise.images import ablation
from likewise.images.config import Config
from worlds.shapes import stripes

SMALL = Config(
    backbone="convnet", size=32, shortest=36, dim=32, classes=3, per_class=4, queue=32, norm="trained", steps=3,
    workers=1, validation=0.0,
)  # fmt: skip


def test_every_set_of_tasks_has_the_discriminative_one_and_four_heads() -> None:
    """[DiVA Tab. 2]: seven sets beside the baseline, each with the same total dimension."""
    variants = ablation.subsets()
    assert variants[0].name == "margin"
    assert len(variants) == 8
    heads = [v.configs(SMALL, 0)[0].heads for v in variants[1:]]
    assert all(h[0] == "disc" and len(h) == 4 for h in heads)
    assert len({frozenset(h) for h in heads}) == 7
    assert variants[-1].name == "disc + shared + intra + dance"


def test_separate_models_share_the_dimension_and_have_full_weight() -> None:
    """[DiVA Tab. 4]: a network for each task."""
    (separate,) = [v for v in ablation.structure(SMALL) if v.separate]
    configs = separate.configs(SMALL, 7)
    assert [c.tasks for c in configs] == ["disc", "shared", "intra", "dance"]
    assert all(c.dim == 8 and c.seed == 7 for c in configs)
    assert [c.alpha(c.tasks) for c in configs] == [1.0] * 4


def test_rotation_is_left_out_where_its_pictures_are_frozen() -> None:
    names = {v.name for v in ablation.rivals(SMALL)}
    assert "RotNet" in names
    assert {v.name for v in ablation.rivals(Config(frozen=12))} == names - {"RotNet"}


def test_differences_are_paired_by_seed() -> None:
    base = np.array([0.1, 0.5, 0.9])
    rows = [ablation.Row("margin", {"r1": base}, np.ones(2)), ablation.Row("other", {"r1": base + 0.01}, np.ones(2))]
    record = ablation.Ablation("study", tuple(rows)).records()[1]
    assert record["difference"] == pytest.approx(0.01)
    assert record["difference_se"] == pytest.approx(0.0, abs=1e-12)  # though each of the two varies much
    assert record["r1_se"] == pytest.approx(0.4 / math.sqrt(3))
    assert math.isnan(ablation.mean_error(np.array([1.0]))[1])


def test_a_study_runs_and_is_drawn(tmp_path: Path) -> None:
    variants = [v for v in ablation.structure(SMALL) if v.name in ("margin", "separate models")]
    told: list[str] = []
    data = stripes(5, 6), stripes(4, 5, first=50)
    found = ablation.ablate(*data, variants, SMALL, out=tmp_path, seeds=(0,), tell=told.append)
    assert [line.partition(":")[0] for line in told] == ["margin", "separate models"]
    assert not any("nan" in line for line in told)  # one seed has no error
    assert [r.name for r in found.rows] == ["margin", "separate models"]
    assert all(0 <= r.figures["r1"][0] <= 1 for r in found.rows)
    assert found.rows[1].spectrum.sum() == pytest.approx(1.0)
    found.plot(tmp_path / "bars.png")
    found.plot_spectra(tmp_path / "spectra.png")
    assert (tmp_path / "bars.png").stat().st_size > 5000
    assert found.records()[0]["r1_se"] is None


def test_refusals(tmp_path: Path) -> None:
    twice = [ablation.Variant("a"), ablation.Variant("a")]
    with pytest.raises(InputError, match="different names"):
        ablation.ablate(stripes(), stripes(), twice, SMALL, out=tmp_path)
    with pytest.raises(InputError, match="at least one"):
        ablation.ablate(stripes(), stripes(), [], SMALL, out=tmp_path)


def test_the_error_over_classes_is_that_of_class_means_where_classes_are_equal() -> None:
    values, labels = np.random.default_rng(0).normal(size=600), np.repeat(np.arange(30), 20)
    means = values.reshape(30, 20).mean(axis=1)
    expected = float(means.mean()), float(means.std(ddof=1) / math.sqrt(30))
    assert ablation.mean_error_over_classes(values, labels) == pytest.approx(expected)
    order = np.random.default_rng(1).permutation(600)  # whatever their order, and whatever numbers they have
    assert ablation.mean_error_over_classes(values[order], 2 * labels[order] + 5) == pytest.approx(expected)
    assert math.isnan(ablation.mean_error_over_classes(values, 0 * labels)[1])


def test_the_error_over_classes_is_the_spread_that_is_seen() -> None:
    """Classes of unequal sizes, drawn anew: the estimate agrees with what means then spread by."""
    draw, found = np.random.default_rng(2), []
    for _ in range(400):
        labels = np.repeat(np.arange(60), draw.integers(5, 40, 60))
        values = draw.normal(0.1, 0.3, 60)[labels] + draw.normal(size=len(labels))
        found.append(ablation.mean_error_over_classes(values, labels))
    means, errors = np.array(found).T
    assert errors.mean() == pytest.approx(means.std(), rel=0.12)


def test_figures_of_other_pictures_are_not_given_out(tmp_path: Path) -> None:
    variants = [v for v in ablation.structure(SMALL) if v.name == "margin"]
    options = {"out": tmp_path, "seeds": (0,)}
    first = ablation.ablate(stripes(5, 6), stripes(4, 5, first=50), variants, SMALL, **options)
    again = ablation.ablate(stripes(5, 6), stripes(4, 5, first=50), variants, SMALL, **options)
    assert again.records()[0]["r1"] == first.records()[0]["r1"]
    for training, test in ((stripes(5, 7), stripes(4, 5, first=50)), (stripes(5, 6), stripes(4, 5, first=90))):
        with pytest.raises(InputError, match="holds figures of other pictures or classes"):
            ablation.ablate(training, test, variants, SMALL, **options)
