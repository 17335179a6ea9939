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
from tests.sets.transport.oracles import ragged

import likewise as lw
from likewise import media, numeric
from likewise.errors import ConvergenceWarning
from likewise.sets import transport
from likewise.store.job import FILE, Job, locked
from likewise.types import Array, Signature

X, Y = ([Signature(*s) for s in ragged(n, seed=seed, high=6)] for n, seed in ((11, 0), (7, 1)))
M = np.diag([2.0, 1.0, 0.5])
GAMMA = 0.3


def distance_matrix(*args: Any, **kwargs: Any) -> Array:
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
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", ["kl", "paper", "sharp", "divergence"])
def test_the_numbers_are_the_solvers(tmp_path: Path, value: Any) -> None:
    D = distance_matrix(X, out=tmp_path / "square", value=value)
    assert D.shape == (11, 11)
    close(D, one_by_one(X, X, value))
    np.testing.assert_array_equal(D, D.T)
    assert value != "divergence" or not np.diag(D).any()
    close(distance_matrix(X, Y, out=tmp_path / "oblong", value=value, metric=M), one_by_one(X, Y, value, metric=M))
    with pytest.raises(AssertionError):  # the oracle tells values apart
        close(D, one_by_one(X, X, "sharp" if value == "kl" else "kl"))
    kwargs: dict[str, Any] = {"gamma": "auto", "metric": M, "value": value}
    close(distance_matrix(X, out=tmp_path / "auto", **kwargs), lw.sets.distances(X, **kwargs))


@pytest.mark.parametrize("block", [1, 5, 100])
def test_any_block_gives_the_same_matrix(tmp_path: Path, block: int) -> None:
    close(distance_matrix(X, out=tmp_path, block=block), one_by_one(X, X, "divergence"))


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    D = distance_matrix(X, out=tmp_path, gamma="auto", metric=M, dtype="float32")
    info = json.loads((tmp_path / "distances.json").read_text())
    assert info["gamma"] == pytest.approx(transport.auto_gamma(transport.pack(X).project(numeric.factor(M))))
    assert (info["shape"], info["pairs"], info["unconverged"], info["key"]["value"]) == ([11, 11], 66, 0, "divergence")
    assert 0 < info["worst_residual"] <= 1e-6
    assert info["seconds"] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["distances.json", "distances.npy"]
    np.testing.assert_array_equal(D, np.load(tmp_path / "distances.npy"))
    assert D.dtype == np.float32
    assert not D.flags.writeable


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_any_form_and_any_number_of_workers_give_the_same_bytes(tmp_path: Path, n_jobs: int) -> None:
    points = [s.points for s in X]
    forms = [points, [(p, np.ones(len(p))) for p in points]]
    made = [distance_matrix(form, out=tmp_path / str(k), n_jobs=(1, n_jobs)[k]) for k, form in enumerate(forms)]
    assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_on_a_dask_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    D = distance_matrix(X, Y, out=tmp_path / "cluster", executor="dask", n_jobs=2)
    np.testing.assert_array_equal(D, distance_matrix(X, Y, out=tmp_path / "here"))


def test_a_finished_matrix_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = distance_matrix(X, out=tmp_path)
    monkeypatch.setattr(transport, "solve_all", lambda *_, **__: pytest.fail("solved again"))
    np.testing.assert_array_equal(distance_matrix(X, out=tmp_path), before)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gamma": 0.4}, r"gamma 0\.3 ≠ 0\.4"),
        ({"value": "sharp"}, "value divergence ≠ sharp"),
        ({"block": 5}, "block 4 ≠ 5"),
        ({"metric": M}, "metric None ≠ "),
        ({"X": X[:-1]}, "X .* ≠ "),
        ({"Y": Y}, "Y None ≠ "),
    ],
)
def test_another_matrix_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], named: str
) -> None:
    before = np.array(distance_matrix(X, out=tmp_path))
    other = {"X": X, **change}
    with pytest.raises(lw.InputError, match=rf"holds another matrix \(.*{named}.*resume=False"):
        distance_matrix(out=tmp_path, **other)
    np.testing.assert_array_equal(np.load(tmp_path / "distances.npy"), before)
    stop_after(2, monkeypatch, tmp_path / "begun")
    with pytest.raises(lw.InputError, match=named):
        distance_matrix(out=tmp_path / "begun", **other)
    D = distance_matrix(out=tmp_path, resume=False, **other)
    assert not np.array_equal(D, before) or "block" in change


def stop_after(blocks: int, monkeypatch: pytest.MonkeyPatch, out: Path, **kwargs: Any) -> None:
    """Run until some blocks are solved, then be interrupted."""
    solve, count = transport.solve_all, iter(range(10**6))

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if next(count) == blocks:
            raise KeyboardInterrupt
        return solve(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(transport, "solve_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distance_matrix(X, out=out, **kwargs)


def test_resumed_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(4, monkeypatch, tmp_path / "m")
    assert len(Job.open(tmp_path / "m").missing()) == 2
    solve, asked = transport.solve_all, []
    monkeypatch.setattr(transport, "solve_all", lambda *a, **k: asked.append(1) or solve(*a, **k))
    D = distance_matrix(X, out=tmp_path / "m")
    assert len(asked) == 2  # of the six blocks of the upper triangle
    np.testing.assert_array_equal(D, distance_matrix(X, out=tmp_path / "whole"))


@pytest.mark.parametrize("name", [1, "X-0"])
def test_damage_before_the_end_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    stop_after(4, monkeypatch, tmp_path / "m", value="divergence", gamma="auto")
    database = sqlite3.connect(tmp_path / "m" / FILE)
    with database:
        database.execute("UPDATE shards SET data = substr(data, 1, length(data) - 3) WHERE name = ?", (name,))
    database.close()
    D = distance_matrix(X, out=tmp_path / "m", value="divergence", gamma="auto")
    whole = distance_matrix(X, out=tmp_path / "whole", value="divergence", gamma="auto")
    np.testing.assert_array_equal(D, whole)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", "cut", "other", None])
def test_a_damaged_matrix_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, data: Any) -> None:
    good, file = np.array(distance_matrix(X, out=tmp_path)), tmp_path / "distances.npy"
    whole = file.read_bytes()
    file.unlink()
    if data == "other":
        np.save(file, np.zeros((2, 2)))
    elif data is not None:
        file.write_bytes(whole[:-8] if data == "cut" else data)
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(distance_matrix(X, out=tmp_path), good)
    assert any("distances.npy" in message and "made again" in message for message in caplog.messages)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"key": 3}'])
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "distances.json").write_text(text)
    with pytest.raises(lw.LikewiseError, match=r"distances\.json is damaged|holds another matrix"):
        distance_matrix(X, out=tmp_path)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from likewise.sets import distance_matrix

def peak():  # not ru_maxrss: that is the parent's, too, where it is larger
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

P = np.random.default_rng(0).normal(size=(4000, 1))
distance_matrix(P[:256], out=sys.argv[1] + "/small", block=128, gamma=0.1)
before = peak()
D = distance_matrix(P, out=sys.argv[1] + "/large", block=128, gamma=0.1)
print(peak() - before, D.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_that_of_a_block_and_not_of_the_matrix(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True)
    grown, matrix_bytes = map(int, done.stdout.split())
    assert matrix_bytes == 128_000_000
    assert grown < 0.15 * matrix_bytes


def test_killed_while_assembling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def died(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "open_memmap", died)
        with pytest.raises(KeyboardInterrupt):
            distance_matrix(X, out=tmp_path / "m")
    (tmp_path / "m" / ".distances.0123456789ab.tmp.npy").write_bytes(b"half")
    assert not (tmp_path / "m" / "distances.npy").exists()
    monkeypatch.setattr(transport, "solve_all", lambda *_, **__: pytest.fail("solved again"))
    monkeypatch.setattr(media, "_swept", set())  # as in a process that begins
    D = distance_matrix(X, out=tmp_path / "m")
    close(D, one_by_one(X, X, "divergence"))
    assert not list((tmp_path / "m").glob(".distances*"))


def test_what_does_not_converge_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solve = transport.solve_all

    def short(*args: Any, **kwargs: Any) -> Any:
        result = solve(*args, **kwargs)
        result.residual[0, :] = 0.25
        return result

    monkeypatch.setattr(transport, "solve_all", short)
    with pytest.warns(ConvergenceWarning, match=r"^21 of 66 .*largest marginal error 0\.25") as caught:
        distance_matrix(X, out=tmp_path)
    assert len(caught) == 1  # rows 0, 4 and 8 of the upper triangle: 11 + 7 + 3
    info = json.loads((tmp_path / "distances.json").read_text())
    assert (info["unconverged"], info["worst_residual"]) == (21, 0.25)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"gamma": 0}, "gamma: expected"),
        ({"value": "emd"}, "value: expected 'kl' or 'paper' or 'divergence' or 'sharp'"),
        ({"block": 0}, "block: expected"),
        ({"block": 2.5}, "block: expected"),
        ({"dtype": "int8"}, "dtype: expected"),
        ({"metric": np.eye(2)}, "metric: expected shape"),
        ({"Y": [np.zeros((2, 5))]}, "Y: expected points of 3 dimensions, got 5"),
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
