"""The distance matrix on disk: the numbers of the solver, whoever is killed and whatever is damaged on the way."""

from __future__ import annotations

import json
import logging
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likewise as lw
from likewise import numeric
from likewise.errors import ConvergenceWarning
from likewise.sets.distance_matrix import DistanceMatrix
from likewise.sets.transport import solvers as transport
from likewise.store.job import FILE, Job, locked
from likewise.types import Array, Signature


def ragged(n: int, seed: int = 0, dim: int = 3) -> list[Signature]:
    """Signatures of 1 to 5 weighted points."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, n)
    return [Signature(rng.normal(size=(m, dim)) + rng.normal(size=dim), rng.random(m) + 0.1) for m in sizes]


X, Y = ragged(11), ragged(7, seed=1)
M = np.diag([2.0, 1.0, 0.5])
GAMMA = 0.3


matrix = sys.modules[DistanceMatrix.__module__]


def distance_matrix(*args: Any, **kwargs: Any) -> DistanceMatrix:
    return lw.sets.distance_matrix(*args, **{"progress": False, "block": 4, "gamma": GAMMA, **kwargs})


def one_by_one(A: list[Signature], B: list[Signature], value: str, metric: Any = None) -> Array:
    """The oracle: one pair at a time, in plain numpy, each value from its definition [MLML Eq. 4–7]."""

    def solve(p: Signature, q: Signature, what: str = "kl") -> float:
        C, ab = numeric.mahalanobis(p.points, q.points, metric), np.outer(p.weights, q.weights)
        F = transport.sinkhorn(C, p.weights, q.weights, GAMMA, tol=1e-10)[2]
        extra = {"kl": F * np.log(F / ab), "paper": F * np.log(F), "sharp": np.zeros_like(F)}[what]
        return float((C * F + GAMMA * extra).sum())

    if value == "divergence":
        return np.array([[solve(p, q) - solve(p, p) / 2 - solve(q, q) / 2 for q in B] for p in A])
    return np.array([[solve(p, q, value) for q in B] for p in A])


def close(a: Any, b: Any) -> None:
    """Equal to within what the tolerance of the marginals allows."""
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", ["kl", "paper", "sharp", "divergence"])
def test_the_numbers_are_the_solvers(tmp_path: Path, value: str) -> None:
    D = distance_matrix(X, out=tmp_path / "square", value=value)
    assert D.shape == (11, 11)
    close(D, one_by_one(X, X, value))
    np.testing.assert_array_equal(np.asarray(D), np.asarray(D).T)
    assert value != "divergence" or not np.diag(np.asarray(D)).any()
    close(distance_matrix(X, Y, out=tmp_path / "oblong", value=value, metric=M), one_by_one(X, Y, value, metric=M))


@pytest.mark.parametrize("value", ["kl", "paper", "sharp", "divergence"])
def test_they_are_those_of_distances(tmp_path: Path, value: Any) -> None:
    kwargs: dict[str, Any] = {"gamma": "auto", "metric": M, "value": value}
    close(distance_matrix(X, out=tmp_path / "square", **kwargs), lw.sets.distances(X, **kwargs))
    close(lw.sets.distance_matrix(X, Y, out=tmp_path / "oblong", **kwargs), lw.sets.distances(X, Y, **kwargs))


def test_the_oracle_can_tell_values_apart(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        close(distance_matrix(X, out=tmp_path), one_by_one(X, X, "sharp"))


def test_divergence_solves_the_self_terms_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, solve = [], matrix._solve_self
    monkeypatch.setattr(matrix, "_solve_self", lambda sets, how: asked.append(len(sets)) or solve(sets, how))
    distance_matrix(X, Y, out=tmp_path, value="divergence")
    assert asked == [4, 4, 3, 4, 3]


@pytest.mark.parametrize("block", [1, 3, 11, 100])
def test_any_block_gives_the_same_matrix(tmp_path: Path, block: int) -> None:
    close(distance_matrix(X, out=tmp_path, block=block), one_by_one(X, X, "kl"))


def test_auto_gamma_and_the_file_beside(tmp_path: Path) -> None:
    D = distance_matrix(X, out=tmp_path / "m", gamma="auto", metric=M)
    assert D.gamma == pytest.approx(transport.auto_gamma(transport.pack(X).project(numeric.factor(M))))
    info = json.loads((tmp_path / "m" / "distances.json").read_text())
    assert info["shape"] == [11, 11]
    assert info["pairs"] == 66
    assert info["unconverged"] == 0
    assert 0 < info["worst_residual"] <= 1e-6
    assert 1 <= info["mean_iterations"] <= info["most_iterations"]
    assert info["seconds"] > 0
    assert info["key"]["value"] == "kl"
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == ["distances.json", "distances.npy"]


def test_the_reader(tmp_path: Path) -> None:
    made = distance_matrix(X, Y, out=tmp_path)
    D = DistanceMatrix.open(tmp_path)
    assert (len(D), D.shape, D.gamma) == (11, (11, 7), GAMMA)
    whole = np.load(tmp_path / "distances.npy")
    np.testing.assert_array_equal(np.asarray(D), whole)
    np.testing.assert_array_equal(D[2:4, [1, 3]], whole[2:4, [1, 3]])
    assert D[3, 4] == whole[3, 4]
    assert not isinstance(D[2], np.memmap)
    assert np.asarray(D, dtype=np.float32).dtype == np.float32
    assert "11×7, kl" in repr(made)
    D.verify()


def test_float32(tmp_path: Path) -> None:
    D = distance_matrix(X, out=tmp_path, dtype="float32")
    assert np.asarray(D).dtype == np.float32
    close(D, one_by_one(X, X, "kl"))


def test_any_form_that_distances_takes(tmp_path: Path) -> None:
    points = [s.points for s in X]
    forms = [points, [(p, np.ones(len(p))) for p in points], transport.pack([Signature(p) for p in points])]
    made = [np.asarray(distance_matrix(form, out=tmp_path / str(k))) for k, form in enumerate(forms)]
    assert np.array_equal(made[0], made[1])
    assert np.array_equal(made[0], made[2])
    stacked = np.random.default_rng(4).normal(size=(5, 4, 3))
    close(distance_matrix(stacked, out=tmp_path / "stacked"), lw.sets.distances(stacked, gamma=GAMMA))


def test_one_point_sets_are_the_squared_mahalanobis_distance(tmp_path: Path) -> None:
    P = np.random.default_rng(3).normal(size=(6, 3))
    D = distance_matrix(P, out=tmp_path, metric=M, block=4)
    np.testing.assert_allclose(np.asarray(D), numeric.mahalanobis(P, P, M), atol=1e-12)


def test_same_bytes_with_workers(tmp_path: Path) -> None:
    distance_matrix(X, out=tmp_path / "one")
    distance_matrix(X, out=tmp_path / "two", n_jobs=2)
    one, two = ((tmp_path / name / "distances.npy").read_bytes() for name in ("one", "two"))
    assert one == two


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_on_a_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    D = distance_matrix(X, Y, out=tmp_path / "cluster", executor="dask", n_jobs=2)
    np.testing.assert_array_equal(np.asarray(D), np.asarray(distance_matrix(X, Y, out=tmp_path / "here")))


def test_a_finished_matrix_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = np.asarray(distance_matrix(X, out=tmp_path))
    monkeypatch.setattr(matrix, "_solve", lambda *_: pytest.fail("solved again"))
    np.testing.assert_array_equal(np.asarray(distance_matrix(X, out=tmp_path)), before)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gamma": 0.4}, r"gamma 0\.3 ≠ 0\.4"),
        ({"value": "sharp"}, "value kl ≠ sharp"),
        ({"block": 5}, "block 4 ≠ 5"),
        ({"metric": M}, "metric None ≠ "),
    ],
)
def test_another_matrix_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    before = np.asarray(distance_matrix(X, out=tmp_path))
    with pytest.raises(lw.InputError, match=rf"holds another matrix \({named}.*resume=False"):
        distance_matrix(X, out=tmp_path, **change)
    np.testing.assert_array_equal(np.load(tmp_path / "distances.npy"), before)
    stop_after(2, monkeypatch, tmp_path / "begun")
    with pytest.raises(lw.InputError, match=named):
        distance_matrix(X, out=tmp_path / "begun", **change)
    D = distance_matrix(X, out=tmp_path, resume=False, **change)
    assert not np.array_equal(np.asarray(D), before) or "block" in change


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    distance_matrix(X, out=tmp_path)
    for other in ((X[:-1],), (X, Y)):
        with pytest.raises(lw.InputError, match="holds another matrix"):
            distance_matrix(*other, out=tmp_path)


def stop_after(blocks: int, monkeypatch: pytest.MonkeyPatch, out: Path, **kwargs: Any) -> None:
    """Run until some blocks are solved, then be interrupted."""
    solve, count = matrix._solve, iter(range(10**6))

    def interrupted(*args: Any) -> Any:
        if next(count) == blocks:
            raise KeyboardInterrupt
        return solve(*args)

    with monkeypatch.context() as patch:
        patch.setattr(matrix, "_solve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distance_matrix(X, out=out, **kwargs)


def test_resumed_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(4, monkeypatch, tmp_path / "m")
    assert len(Job.open(tmp_path / "m").missing()) == 2
    solve, asked = matrix._solve, []
    monkeypatch.setattr(matrix, "_solve", lambda *a: asked.append(1) or solve(*a))
    D = distance_matrix(X, out=tmp_path / "m")
    assert len(asked) == 2  # of the six blocks of the upper triangle
    np.testing.assert_array_equal(np.asarray(D), np.asarray(distance_matrix(X, out=tmp_path / "whole")))


@pytest.mark.parametrize("name", [1, "X-0"])
def test_damage_before_the_end_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    stop_after(4, monkeypatch, tmp_path / "m", value="divergence", gamma="auto")
    database = sqlite3.connect(tmp_path / "m" / FILE)
    with database:
        database.execute("UPDATE shards SET data = substr(data, 1, length(data) - 3) WHERE name = ?", (name,))
    database.close()
    D = distance_matrix(X, out=tmp_path / "m", value="divergence", gamma="auto")
    whole = distance_matrix(X, out=tmp_path / "whole", value="divergence", gamma="auto")
    np.testing.assert_array_equal(np.asarray(D), np.asarray(whole))


def test_a_damaged_matrix(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = np.array(distance_matrix(X, out=tmp_path))
    file = tmp_path / "distances.npy"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(lw.FileError, match=r"distances\.npy is damaged: it does not match its checksum"):
        DistanceMatrix.open(tmp_path).verify()
    for bad in (bytes(data[:-8]), b"", b"\x93NUMPY"):
        file.write_bytes(bad)
        with pytest.raises(lw.FileError, match=r"distances\.npy: (declares|damaged|the file is empty|NumPy format)"):
            DistanceMatrix.open(tmp_path)
    np.save(file, np.zeros((2, 2)))
    with pytest.raises(lw.FileError, match=r"shape \(2, 2\)"):
        DistanceMatrix.open(tmp_path)
    file.unlink()
    with pytest.raises(lw.FileError, match="does not exist"):
        DistanceMatrix.open(tmp_path)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(np.asarray(distance_matrix(X, out=tmp_path)), good)
    assert any("made again" in message for message in caplog.messages)
    for bad_json in ("{", "{}", '{"format": 1, "shape": 3}'):
        (tmp_path / "distances.json").write_text(bad_json)
        with pytest.raises(lw.FileError, match=r"distances\.json"):
            DistanceMatrix.open(tmp_path)


MEMORY = """
import resource, sys
import numpy as np
from likewise.sets.distance_matrix import distance_matrix

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

P = np.random.default_rng(0).normal(size=(4000, 1))
distance_matrix(P[:256], out=sys.argv[1] + "/small", block=128, gamma=0.1)
before = peak()
D = distance_matrix(P, out=sys.argv[1] + "/large", block=128, gamma=0.1)
print(peak() - before, D.values.nbytes)
"""


@pytest.mark.slow
def test_memory_is_that_of_a_block_and_not_of_the_matrix(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    grown, matrix_bytes = map(int, done.stdout.split())
    assert matrix_bytes == 128_000_000
    assert grown < 0.15 * matrix_bytes


def test_killed_while_assembling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(matrix, "_sha_of_file", died)
        with pytest.raises(KeyboardInterrupt):
            distance_matrix(X, out=tmp_path / "m")
    (tmp_path / "m" / ".distances.0123456789ab.tmp.npy").write_bytes(b"half")
    assert not (tmp_path / "m" / "distances.npy").exists()
    monkeypatch.setattr(matrix, "_solve", lambda *_: pytest.fail("solved again"))
    D = distance_matrix(X, out=tmp_path / "m")
    close(D, one_by_one(X, X, "kl"))
    assert not list((tmp_path / "m").glob(".distances*"))


def test_what_does_not_converge_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = matrix._solve

    def short(*args: Any) -> Any:
        found = solve(*args)
        found.residual[0, :] = 0.25
        return found

    monkeypatch.setattr(matrix, "_solve", short)
    with pytest.warns(ConvergenceWarning, match=r"^21 of 66 pairs stopped.*worst marginal error 0\.25") as caught:
        D = distance_matrix(X, out=tmp_path)
    assert len(caught) == 1  # rows 0, 4 and 8 of the upper triangle: 11 + 7 + 3
    assert D.info["unconverged"] == 21
    assert D.info["worst_residual"] == 0.25


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"gamma": 0}, "gamma: expected"),
        ({"gamma": "car"}, "gamma: expected"),
        ({"value": "emd"}, "value: expected 'kl' or 'paper' or 'divergence' or 'sharp'"),
        ({"tol": -1}, "tol: expected"),
        ({"block": 0}, "block: expected"),
        ({"block": 2.5}, "block: expected"),
        ({"max_iter": 0}, "max_iter: expected"),
        ({"dtype": "int8"}, "dtype: expected"),
        ({"metric": np.eye(2)}, "metric: expected shape"),
        ({"metric": -np.eye(3)}, "not positive semi-definite"),
        ({"Y": [np.zeros((2, 5))]}, "Y has 5 dimensions where X has 3"),
        ({"Y": []}, "Y: "),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_bad_input_is_named_and_nothing_is_half_written(tmp_path: Path, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(lw.InputError, match=named):
        distance_matrix(X, out=tmp_path / "m", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_are_kept_apart(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(lw.InputError, match="in use"):
        distance_matrix(X, out=tmp_path)
