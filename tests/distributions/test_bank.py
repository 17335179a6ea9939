"""Banks: the same bytes however they are made, nothing finished is lost, nothing wrong is passed over in silence."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sqlite3
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import likewise as lw
from likewise.distributions import Bank, Generator, Normal, TruncatedNormal, Uniform, harvest, harvesting, load
from likewise.errors import DegeneracyWarning, ShardError
from likewise.store.job import FILE, Job
from worlds.elsewhere import program
from worlds.generators import Classes, Folded, HalfDead, Linear, Stairs


def folded(latent: Any = None, seed: int = 0) -> Generator:
    return Generator(Folded(seed), latent or Normal(2))


def contents(folder: Path) -> dict[int, bytes]:
    """The bytes of every shard."""
    database = sqlite3.connect(folder / FILE)
    result = dict(database.execute("SELECT name, data FROM shards").fetchall())
    database.close()
    return result


def damage(folder: Path, change: str) -> None:
    """Change shard 3 as a bad disk would."""
    database = sqlite3.connect(folder / FILE)
    with database:
        database.execute(change + " WHERE name = 3")
    database.close()


def finished(out: Path) -> dict[Any, tuple[float, int]]:
    return Job.open(out).finished() if (out / FILE).exists() else {}


def same(a: Bank, b: Bank) -> bool:
    columns = ("latents", "log_sigma", "rank", "labels", "log_density")
    return all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    """Six shards of the folded map, made in this process without interruption."""
    folder = tmp_path_factory.mktemp("expected") / "bank"
    harvest(folded(), 48, out=folder, shard_size=8, seed=5)
    result = contents(folder)
    assert len(result) == 6
    return result


# ── what a bank holds ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bank_holds_latents_and_singular_values() -> None:
    generator = folded()
    b = harvest(generator, 50, shard_size=20, seed=2)
    assert (len(b), b.dim, b.k) == (50, 2, 2)
    assert b.latents.dtype == np.float32
    J = torch.func.vmap(torch.func.jacfwd(lambda z: generator.net(z[None])[0]))(torch.from_numpy(b.latents))
    exact = np.log(torch.linalg.svdvals(J.double()).numpy())
    np.testing.assert_allclose(b.log_sigma, exact, atol=1e-5)
    np.testing.assert_allclose(b.log_volume(1), exact[:, 0], atol=1e-5)
    np.testing.assert_allclose(b.log_density, Normal(2).log_density(b.latents))
    assert b.rank.tolist() == [2] * 50
    assert "50 latents of Folded, k = 2, space pixel" in repr(b)


def test_latents_are_those_of_the_counter_seed() -> None:
    """Shard i is drawn from Philox with the seed as key and i · 2^192 as counter, whoever draws the others."""
    b = harvest(folded(), 25, shard_size=10, seed=7)
    for i in range(3):
        rng = np.random.Generator(np.random.Philox(key=7, counter=[0, 0, 0, i]))
        part = Normal(2).sample(10, rng)
        np.testing.assert_array_equal(b.latents[10 * i : 10 * i + 10], part[: len(b) - 10 * i])
    assert len(np.unique(b.latents, axis=0)) == 25
    assert not np.array_equal(harvest(folded(), 10, shard_size=10, seed=8).latents, b.latents[:10])


def test_classes_take_turns() -> None:
    generator = Generator(Classes(), Uniform(1), labels=3)
    b = harvest(generator, 31, shard_size=10)
    np.testing.assert_array_equal(b.labels, np.arange(31) % 3)
    slope = torch.func.vmap(torch.func.jacfwd(lambda z, y: generator.net(z[None], y[None])[0]))
    exact = slope(torch.from_numpy(b.latents), torch.from_numpy(b.labels)).numpy().ravel()
    np.testing.assert_allclose(b.log_sigma[:, 0], np.log(exact), atol=1e-5)


def test_dead_latents_are_flagged() -> None:
    b = harvest(Generator(HalfDead(), Normal(2)), 400)
    np.testing.assert_array_equal(b.dead(), b.latents[:, 1] < 0)
    assert not b.dead(1).any()
    assert np.isneginf(b.log_sigma[b.dead(), 1]).all()
    for rho in (-1.0, 1.0):
        drawn = b.draw(300, rho)
        assert (drawn.latents[:, 1] > 0).all()
        assert drawn.dead == pytest.approx(0.5, abs=0.1)
    assert (b.sample(300, -1.0, k=1)[:, 1] < 0).any()


def test_memory_and_folder_are_the_same(tmp_path: Path) -> None:
    inside, outside = harvest(folded(), 50), harvest(folded(), 50, out=tmp_path / "bank")
    assert same(inside, outside)
    assert same(Bank.open(tmp_path / "bank"), outside)
    assert (inside.path, outside.path) == (None, tmp_path / "bank")
    said = {"generator": folded().digest, "space": "pixel", "k": 2, "seed": 0, "shard_size": 50}
    assert said.items() <= Job.open(tmp_path / "bank").identity.items()


# ── the same bytes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_same_bytes_with_threads_and_more_torch_threads(tmp_path: Path, expected: dict[int, bytes]) -> None:
    with ThreadPoolExecutor(4) as pool:
        harvest(folded(), 48, out=tmp_path / "threads", shard_size=8, seed=5, executor=pool)
    assert contents(tmp_path / "threads") == expected
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        harvest(folded(), 48, out=tmp_path / "two", shard_size=8, seed=5)
        assert torch.get_num_threads() == 2  # put back
    finally:
        torch.set_num_threads(before)
    assert contents(tmp_path / "two") == expected


def test_stopped_in_the_middle_and_resumed(
    tmp_path: Path, expected: dict[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an interruption here; processes that are killed are tested with the jobs themselves."""
    out, plain = tmp_path / "bank", harvesting.Work.__call__

    def stops(self: Any, shard: int) -> Any:
        if shard == 3:
            raise KeyboardInterrupt
        return plain(self, shard)

    monkeypatch.setattr(harvesting.Work, "__call__", stops)
    with pytest.raises(KeyboardInterrupt):
        harvest(folded(), 48, out=out, shard_size=8, seed=5)
    monkeypatch.undo()
    kept = finished(out)
    assert sorted(kept) == [0, 1, 2]
    with pytest.raises(lw.FileError, match=r"shard 3 and 2 more are missing; harvest\(generator, 48, k=2, seed=5"):
        Bank.open(out)
    harvest(folded(), 48, out=out, shard_size=8, seed=5)
    assert contents(out) == expected
    assert kept.items() <= finished(out).items()  # what was finished was not done again


@pytest.mark.slow
def test_a_real_conditional_generator(data: Path, tmp_path: Path) -> None:
    """The values are those of a float64 SVD, class by class, and two processes make the same bytes as one."""
    generator = load(data / "generators" / "cwgan_mnist_z10.pth", latent_first=True, slope=0.0)
    b = harvest(generator, 20, shard_size=10, out=tmp_path / "one")
    np.testing.assert_array_equal(b.labels, np.arange(20) % 10)
    assert (b.k, b.about.labels) == (10, 10)
    net = copy.deepcopy(generator.net).double()
    for i in (0, 7, 13):
        y = torch.tensor([int(b.labels[i])])  # type: ignore[index]
        J = torch.func.jacfwd(lambda z, y=y: net(z[None], y).flatten())(torch.from_numpy(b.latents[i]).double())
        np.testing.assert_allclose(b.log_sigma[i], np.log(torch.linalg.svdvals(J).numpy()), atol=1e-4)
    harvest(generator, 20, shard_size=10, out=tmp_path / "two", n_jobs=2)  # more are tested with the jobs themselves
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "change", ["UPDATE shards SET data = substr(data, 1, 99)", "UPDATE shards SET data = 7", "DELETE FROM shards"]
)
def test_a_damaged_shard_is_named_and_harvested_again(
    tmp_path: Path, expected: dict[int, bytes], change: str, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "bank"
    harvest(folded(), 48, out=out, shard_size=8, seed=5)
    others = {i: said for i, said in finished(out).items() if i != 3}
    damage(out, change)
    with pytest.raises(lw.FileError, match=r"shard 3.*harvest\(.*does it again and keeps the others"):
        Bank.open(out)
    harvest(folded(), 48, out=out, shard_size=8, seed=5)
    assert contents(out) == expected
    assert others.items() <= finished(out).items()
    assert change.startswith("DELETE") or "shard 3 is done again" in caplog.text


def test_a_folder_without_a_bank(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="does not exist"):
        Bank.open(tmp_path / "nowhere")
    with Job.begin(tmp_path / "other", {"what": "other"}):
        pass
    with pytest.raises(lw.FileError, match="not the record of a bank"):
        Bank.open(tmp_path / "other")


# ── larger, merged, saved ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_larger_n_extends_the_folder(tmp_path: Path, expected: dict[int, bytes]) -> None:
    out = tmp_path / "bank"
    whole = harvest(folded(), 100, shard_size=8, seed=5)
    harvest(folded(), 48, out=out, seed=5, shard_size=8)
    first = finished(out)
    grown = harvest(folded(), 70, out=out, seed=5)  # the folder's own shard size
    assert same(grown, whole.first(70))
    assert same(Bank.open(out), grown)
    assert first.items() <= finished(out).items()  # none was done again
    assert same(harvest(folded(), 71, out=out, seed=5), whole.first(71))  # a latent that the last shard holds already
    assert same(harvest(folded(), 100, out=out, seed=5), whole)
    assert same(harvest(folded(), 20, out=out, seed=5), whole.first(20))
    assert len(Bank.open(out)) == 100
    assert Bank.open(out).about.shards == {(5, i) for i in range(13)}
    damage(out, "DELETE FROM shards")
    with pytest.raises(lw.FileError, match="shard 3 is missing"):
        Bank.open(out)
    assert same(harvest(folded(), 100, out=out, seed=5), whole)
    harvest(folded(), 48, out=out, seed=5, shard_size=8, resume=False)
    assert contents(out) == expected


def test_another_job_in_the_folder_is_refused(tmp_path: Path, expected: dict[int, bytes]) -> None:
    out = tmp_path / "bank"
    harvest(folded(), 48, out=out, shard_size=8, seed=5)
    with pytest.raises(lw.InputError, match=r"made by another job \(generator"):
        harvest(folded(seed=1), 48, out=out, shard_size=8, seed=5)
    for changed in ({"seed": 6}, {"k": 1}, {"shard_size": 16}, {"method": "fd"}):
        with pytest.raises(lw.InputError, match=r"made by another job.*resume=False"):
            harvest(folded(), 48, out=out, **{"shard_size": 8, "seed": 5, **changed})  # type: ignore[arg-type]
    assert contents(out) == expected
    harvest(folded(seed=1), 10, out=out, resume=False)
    assert len(Bank.open(out)) == 10


def test_merge(tmp_path: Path) -> None:
    a, b, c = (harvest(folded(), 30, seed=s, shard_size=10) for s in (0, 1, 2))
    merged = Bank.merge([c, a, b])
    assert same(merged, Bank.merge([a, b, c]))
    assert len(merged) == 90
    np.testing.assert_array_equal(merged.latents, np.concatenate([a.latents, b.latents, c.latents]))
    merged.check(folded())
    merged.save(tmp_path / "merged")
    again = Bank.open(tmp_path / "merged")
    assert same(again, merged)
    assert again.about == merged.about
    with pytest.raises(lw.InputError, match="holds shard 0 of seed 1 that another holds, too"):
        Bank.merge([again, b])


@pytest.mark.parametrize(
    ("others", "words"),
    [
        (lambda: [harvest(folded(), 10), harvest(folded(seed=1), 10, seed=1)], r"banks\[1\]: generator"),
        (lambda: [harvest(folded(), 10), harvest(folded(Uniform(2)), 10, seed=1)], r"banks\[1\]: generator"),
        (lambda: [harvest(folded(), 10), harvest(folded(), 10, seed=1, k=1)], "k is 1 where the first has 2"),
        (lambda: [harvest(folded(), 5), harvest(folded(), 5, seed=1, method="fd")], "method is fd where the first has"),
        (lambda: [harvest(folded(), 5), harvest(folded(), 15, shard_size=5)], r"banks\[1\] holds shard 0 of seed 0"),
        (lambda: ["bank"], r"banks\[0\]: expected a Bank, got str"),
        (lambda: [], "at least one bank"),
    ],
)
def test_merge_refuses(others: Any, words: str) -> None:
    """The last but two: shards of another size, but of the same stream."""
    with pytest.raises(lw.InputError, match=words):
        Bank.merge(others())


def test_a_saved_bank_is_not_overwritten(tmp_path: Path) -> None:
    harvest(folded(), 10).save(tmp_path / "bank")
    harvest(folded(), 10).save(tmp_path / "bank")  # the same one
    with pytest.raises(lw.InputError, match="made by another job"):
        harvest(folded(), 11).save(tmp_path / "bank")
    with pytest.raises(lw.InputError, match="made by another job"):
        harvest(folded(), 10, out=tmp_path / "bank")


# ── whose bank ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bank_of_another_generator_is_refused(tmp_path: Path) -> None:
    harvest(folded(), 10, out=tmp_path / "bank")
    b = Bank.open(tmp_path / "bank")
    b.check(folded())
    said = r"^bank/ was harvested from another generator \(sha [0-9a-f]{4}… ≠ [0-9a-f]{4}…\); "
    with pytest.raises(lw.InputError, match=said + "harvest again or pass its own generator$"):
        b.check(folded(seed=1))
    with pytest.raises(lw.InputError, match="the bank was harvested from another generator"):
        harvest(folded(), 10).check(folded().in_space(lambda x: 2 * x))


# ── weights and samples ───────────────────────────────────────────────────────────────────────────────────────────


def test_weights_are_normalised_within_a_class() -> None:
    """Class 2 is e² times as steep as class 0: as a whole its latents would take nearly all the weight at ρ = 1."""
    b = harvest(Generator(Classes(), Uniform(1), labels=3), 300)
    w = np.exp(b.log_weights(1.0))
    for c in range(3):
        assert w[b.labels == c].sum() == pytest.approx(1 / 3)
        alone = b.log_weights(1.0, label=c)
        assert np.isneginf(alone[b.labels != c]).all()
        np.testing.assert_allclose(np.exp(alone[b.labels == c]), 3 * w[b.labels == c])
        drawn = b.draw(50, 1.0, label=c)
        assert set(drawn.labels.tolist()) == {c}  # type: ignore[union-attr]
        assert drawn.ess == pytest.approx(b.ess(1.0, label=c))
        assert b.ess(b.rho_for_ess(0.5, label=c), label=c) == pytest.approx(0.5)
        np.testing.assert_array_equal(b.sample(100, 0.0, label=c), b.latents[b.labels == c])
    assert b.ess(b.rho_for_ess(0.5)) == pytest.approx(0.5)
    counts = np.bincount(b.draw(3000, 1.0).labels, minlength=3)  # type: ignore[arg-type]
    np.testing.assert_allclose(counts, 1000, atol=120)
    with pytest.raises(lw.InputError, match="label: expected a class from 0 to 2, got 3"):
        b.sample(5, 1.0, label=3)
    with pytest.raises(lw.InputError, match="label: this bank has no classes"):
        harvest(folded(), 5).sample(5, 1.0, label=0)


def test_a_draw_tells_what_it_is() -> None:
    b = harvest(folded(), 200)
    drawn = b.draw(30, -1.0, seed=4)
    np.testing.assert_array_equal(drawn.latents, b.latents[drawn.indices])
    np.testing.assert_array_equal(drawn.latents, b.sample(30, -1.0, seed=4))
    assert not np.array_equal(drawn.latents, b.sample(30, -1.0, seed=5))
    assert drawn.ess == pytest.approx(b.ess(-1.0))
    assert drawn.largest == pytest.approx(b.largest(-1.0))
    assert "30 latents, ρ = -1, k = 2, ESS" in repr(drawn)
    without = b.draw(200, -1.0, scheme="without")
    assert sorted(without.indices.tolist()) == list(range(200))


def test_degeneracy_is_told_once() -> None:
    b = harvest(folded(), 2000)
    with pytest.warns(DegeneracyWarning, match=r"ρ = 40 at k = 2 leaves an effective 0\.\d+%.*rho_for_ess") as caught:
        [b.sample(10, 40.0, seed=seed) for seed in range(3)]
    assert len(caught) == 1
    assert issubclass(DegeneracyWarning, UserWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        b.sample(10, b.rho_for_ess(0.0101))
        with pytest.raises(DegeneracyWarning):
            b.sample(10, b.rho_for_ess(0.0099))


def test_the_uniform_target_needs_a_bounded_domain() -> None:
    b = harvest(folded(), 500)
    with pytest.raises(lw.InputError, match=r'"uniform" needs a bounded domain, and Normal has none; harvest'):
        b.log_weights(1.0, target="uniform")
    for latent in (Uniform(2), TruncatedNormal(2, 1.5)):
        bounded = harvest(folded(latent), 100)
        result = bounded.log_weights(-1.0, target="uniform") + latent.log_density(bounded.latents)
        np.testing.assert_allclose(result - bounded.log_weights(-1.0), (result - bounded.log_weights(-1.0))[0])
        assert bounded.ess(0.0, target="uniform") == pytest.approx(1.0 if isinstance(latent, Uniform) else 0.8, abs=0.2)
    with pytest.raises(lw.InputError, match="target: expected latent or uniform"):
        b.log_weights(1.0, target="flat")  # type: ignore[arg-type]


# ── the authors' files ────────────────────────────────────────────────────────────────────────────────────────────


def reference(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_the_authors_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    latents, svds = rng.normal(size=(20, 4)).astype(np.float32), -np.sort(-rng.lognormal(size=(20, 6)), axis=1)
    file = reference(tmp_path / "ffhq_pixel.npz", latents=latents, svds=svds, labels=np.array([]))
    b = Bank.from_reference_npz(file)
    np.testing.assert_array_equal(b.latents, latents)
    np.testing.assert_allclose(np.exp(b.log_sigma), svds)
    product = svds[:, :3].prod(1) ** -0.5
    np.testing.assert_allclose(np.exp(b.log_weights(-0.5, 3)), product / product.sum())
    assert "ffhq_pixel" in repr(b)
    b.check(Generator(Linear(4), Normal(4)))
    with pytest.raises(lw.InputError, match="expected latents of size 4 as in the bank, got 2"):
        b.check(folded())
    with pytest.raises(lw.InputError, match="density of the latents, which this bank does not know"):
        b.log_weights(1.0, target="uniform")
    known = Bank.from_reference_npz(file, latent=TruncatedNormal(4, 9.0))
    assert np.isfinite(known.log_weights(1.0, target="uniform")).all()
    with pytest.raises(lw.InputError, match="latent: expected one of size 4"):
        Bank.from_reference_npz(file, latent=Normal(5))
    b.save(tmp_path / "saved")
    assert same(Bank.open(tmp_path / "saved"), b)


def test_the_authors_labels_and_values_in_any_form(tmp_path: Path) -> None:
    svds = np.array([[1.0, 3.0, 2.0], [4.0, 0.0, 2.0], [5.0, 1e-9, 1.0]], dtype=np.float32)
    numbers = np.array([2, 0, 1])
    for labels in (np.eye(4)[numbers], np.eye(4, dtype=bool)[numbers], numbers, numbers[:, None]):
        b = Bank.from_reference_npz(reference(tmp_path / "c.npz", latents=np.zeros((3, 2)), svds=svds, labels=labels))
        np.testing.assert_array_equal(b.labels, numbers)
    assert b.about.labels == 3
    np.testing.assert_allclose(np.exp(b.log_sigma), [[3, 2, 1], [4, 2, 0], [5, 1, 0]], rtol=1e-6)
    assert b.rank.tolist() == [3, 2, 2]
    assert b.dead().tolist() == [False, True, True]
    file = reference(tmp_path / "l.npz", latents=np.zeros((1, 2)), svds=np.array([[0.5, -1.0]]))
    np.testing.assert_allclose(Bank.from_reference_npz(file, log=True).log_sigma, [[0.5, -1.0]])


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"latents": np.zeros((3, 2))}, "expected arrays 'latents' and 'svds', found latents"),
        ({"latents": np.zeros((3, 2)), "svds": np.ones((4, 2))}, "different lengths: 3, 4"),
        ({"latents": np.arange(3), "svds": np.ones((3, 2))}, "'latents' are random seeds, not vectors"),
        ({"latents": np.full((3, 2), np.nan), "svds": np.ones((3, 2))}, "'latents' contain NaN"),
        ({"latents": np.zeros((3, 2)), "svds": np.full((3, 2), np.nan)}, "'svds' contain NaN"),
        ({"latents": np.zeros((3, 2)), "svds": np.ones(3)}, "'svds': expected floating numbers"),
        ({"latents": np.zeros((3, 2)), "svds": -np.ones((3, 2))}, "if they are logarithms, pass log=True"),
        ({"latents": np.zeros((2, 2)), "svds": np.ones((2, 2)), "labels": np.ones((2, 3))}, "are not one-hot"),
        ({"latents": np.zeros((2, 2)), "svds": np.ones((2, 2)), "labels": np.array([0.5, 1])}, "expected one-hot"),
        ({"latents": np.array([None, {}]), "svds": np.ones((2, 2))}, "Python objects"),
    ],
)
def test_files_that_are_not_the_authors(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(lw.LikewiseError, match=words):
        Bank.from_reference_npz(reference(tmp_path / "bad.npz", **arrays))


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"k": 3}, "k: expected a whole number from 1 to 2, the size of a latent of Folded, got 3"),
        ({"k": 0}, "k: expected a whole number from 1 to 2.*got 0"),
        ({"n": 0}, "n: expected a whole number ≥ 1, got 0"),
        ({"n": 2.5}, "n: expected a whole number"),
        ({"seed": -1}, "seed: expected a whole number from 0 to"),
        ({"seed": 2**64}, "seed: expected a whole number from 0 to"),
        ({"shard_size": 0}, "shard_size: expected"),
        ({"executor": "spark"}, "executor: expected"),
        ({"n_jobs": 0}, "n_jobs: expected"),
        ({"generator": Stairs()}, r"generator: expected a Generator\(net, latent\), got Stairs"),
    ],
)
def test_bad_arguments(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(lw.InputError, match=words):
        harvest(**{"generator": folded(), "n": 5, "out": tmp_path / "bank", **changed})
    assert not (tmp_path / "bank").exists()  # nothing was begun


def breaks(limit: float) -> Generator:
    """NaN where the first coordinate is above a limit."""
    return Generator(lambda z: torch.where(z[:, :1] > limit, torch.nan, z**3), Normal(2))


def test_nan_from_the_generator(tmp_path: Path) -> None:
    with pytest.raises(lw.InputError, match="NaN"):
        harvest(breaks(-99.0), 10, out=tmp_path / "at once")
    assert not (tmp_path / "at once").exists()
    with pytest.raises(ShardError, match=r"shard \d+: InputError: .*NaN"):
        harvest(breaks(2.5), 400, out=tmp_path / "later", shard_size=100)


def test_wrong_latent_shape(tmp_path: Path) -> None:
    class Flat(Normal):
        def sample(self, n: int, rng: np.random.Generator) -> Any:
            return rng.normal(size=n)

    with pytest.raises(lw.ShapeError, match=r"gave shape \(2,\), expected \(n, 2\)"):
        harvest(Generator(Folded(), Flat(2)), 10)
    with pytest.raises(lw.ShapeError, match="latents, log_sigma: expected"):
        Bank(np.zeros(3), np.zeros((3, 2)))
    with pytest.raises(lw.ShapeError, match=r"labels: expected \(3,\)"):
        Bank(np.zeros((3, 1)), np.zeros((3, 2)), labels=[1])
    with pytest.raises(lw.InputError, match="row 1 contains NaN"):
        Bank(np.zeros((2, 1)), [[0.0], [np.nan]])


# ── everywhere it runs ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A generator of the user's own file, in a folder that no worker would look into."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = program(tmp_path / "deep" / "folder", "a_program_of_its_own")
    yield load(f"{file}:make")
    sys.modules.pop("a_program_of_its_own", None)
    harvesting.FOLDERS.clear()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["processes", "dask"])
def test_workers_find_the_users_own_program(own_program: Generator, how: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"n_jobs": 2}
    if how == "dask":
        pytest.importorskip("distributed")
        options["executor"] = "dask"
    one = harvest(own_program, 24, shard_size=8, out=tmp_path / "one", progress=False)
    assert same(one, harvest(own_program, 24, shard_size=8, progress=False, **options))
    assert sorted(contents(tmp_path / "one")) == [0, 1, 2]


def test_a_worker_gets_the_work_once_and_its_folders(own_program: Generator, tmp_path: Path) -> None:
    """Packed for another process: a path on this machine, bytes for others; kept there after the first shard."""
    work = harvesting.Work(own_program, 2, 0, 4)
    here, far = harvesting.Sent.of(work, tmp_path, None), harvesting.Sent.of(work, tmp_path, "dask")
    assert len(pickle.dumps(far)) - len(pickle.dumps(here)) > 500
    assert isinstance(far.held, bytes)
    assert str(tmp_path / "deep" / "folder") in here.folders
    wanted = work(0)
    for sent in (here, far):
        harvesting._RECEIVED.clear()
        first = sent(0)
        assert all(np.array_equal(first[name], wanted[name]) for name in wanted)
    (tmp_path / "work").unlink()
    here(1)  # it is here already
    harvesting._RECEIVED.clear()


def test_a_worker_that_cannot_import_the_program_says_so(own_program: Generator, tmp_path: Path) -> None:
    sent = harvesting.Sent.of(harvesting.Work(own_program, 2, 0, 4), tmp_path, None)
    elsewhere = dataclasses.replace(sent, folders=("/nowhere",), key="another")
    sys.modules.pop("a_program_of_its_own")
    with pytest.raises(
        lw.InputError, match=r"generator: its program cannot be imported on .*, which looked in /nowhere"
    ):
        elsewhere(0)


def test_what_cannot_be_sent_is_told_before_any_shard(tmp_path: Path) -> None:
    lock = threading.Lock()
    generator = Generator(lambda z: z**3 if lock else z, Normal(2))
    with pytest.raises(lw.InputError, match=r"generator: .*<lambda> cannot be sent to another process: .*use n_jobs=1"):
        harvest(generator, 20, n_jobs=2, progress=False)


def test_one_class_alone() -> None:
    generator = Generator(Classes(), Uniform(1), labels=3)
    b = harvest(generator, 12, label=2, shard_size=5, progress=False)
    assert b.labels.tolist() == [2] * 12
    assert b.about.labels == 3
    every = harvest(generator, 12, shard_size=5, progress=False)
    np.testing.assert_array_equal(b.latents, every.latents)
    np.testing.assert_allclose(b.log_sigma[every.labels == 2], every.log_sigma[every.labels == 2])
    for label, g in ((3, generator), (0, folded()), (-1, generator)):
        with pytest.raises(lw.InputError, match="label: expected"):
            harvest(g, 5, label=label, progress=False)


class Manifold(torch.nn.Module):
    """Classes by the hundred: the slope of a class is its number."""

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([z, z.square()], 1) * (1 + y[:, None] / 1000)


@pytest.mark.parametrize("method", ["gram", "left", "fd"])
def test_a_thousand_classes_are_measured_together(method: str) -> None:
    """The network is called as often as for ten classes, and every row has its own class."""
    calls = {}
    for count in (10, 1000):
        net = Manifold()
        seen: list[int] = []
        net.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        b = harvest(Generator(net, Normal(30), labels=count), 1000, k=2, method=method, shard_size=500, progress=False)
        calls[count] = len(seen)
        slope = (1 + 4 * b.latents.astype(np.float64) ** 2) ** 0.5 * (1 + b.labels[:, None] / 1000)
        exact = np.log(-np.sort(-slope, axis=1)[:, :2])
        np.testing.assert_allclose(b.log_sigma, exact, atol={"gram": 1e-5, "left": 0.3, "fd": 1e-2}[method])
    assert calls[1000] == calls[10]


def test_a_basis_of_a_pilot_and_a_small_chunk() -> None:
    plain = harvest(folded(), 40, shard_size=20, progress=False)
    b = harvest(folded(), 40, shard_size=20, basis=2, chunk=3, progress=False)
    assert b.about.method == "left"
    np.testing.assert_array_equal(b.latents, plain.latents)
    np.testing.assert_allclose(b.log_sigma, plain.log_sigma, atol=1e-4)  # two directions are all
    with pytest.raises(lw.InputError, match="basis: expected a whole number from 2 to 2"):
        harvest(folded(), 4, basis=1, progress=False)
    with pytest.raises(lw.InputError, match='method: a basis is for "left"'):
        harvest(folded(), 4, basis=2, method="gram", progress=False)


def test_a_truncated_bank_knows_its_psi(tmp_path: Path) -> None:
    harvest(folded().truncated(0.5), 10, out=tmp_path / "bank", progress=False)
    b = Bank.open(tmp_path / "bank")
    assert b.about.psi == 0.5
    b.check(folded())
    b.check(folded().truncated(0.5))
    with pytest.raises(lw.InputError, match=r"truncated to 0\.7 already"):
        b.check(folded().truncated(0.7))
    with pytest.raises(lw.InputError, match="another generator"):
        harvest(folded(), 10, progress=False).check(folded().truncated(0.5))
    b.save(tmp_path / "saved")
    assert Bank.open(tmp_path / "saved").about.psi == 0.5
    with pytest.raises(lw.InputError, match=r"psi is 0\.5 where the first has 1"):
        Bank.merge([Bank(b.latents, b.log_sigma, about=dataclasses.replace(b.about, psi=1.0)), b])


def test_what_the_authors_get_svds_writes_itself(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    latents, svds = rng.normal(size=(5, 4, 3)).astype(np.float32), -np.sort(-rng.lognormal(size=(5, 4, 3)), axis=2)
    flat = reference(tmp_path / "flat.npz", latents=latents.reshape(20, 3), svds=svds.reshape(20, 3))
    for given in (latents, latents.reshape(20, 3)):
        raw = reference(tmp_path / "raw.npz", latents=given, svds=svds, labels=np.eye(2)[np.arange(20) % 2])
        b = Bank.open(raw)
        assert b.labels is not None
        np.testing.assert_array_equal(b.latents, Bank.open(flat).latents)
        np.testing.assert_array_equal(b.log_sigma, Bank.open(flat).log_sigma)
