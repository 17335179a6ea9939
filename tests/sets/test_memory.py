"""A stopped fit goes on where it was, to the same bytes, in Python and on the command line; it tells what it does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from likewise import cli
from likewise.errors import InputError
from likewise.sets.lmnn import WassersteinLMNN, fit_identity
from likewise.store import checkpoint
from likewise.store import run as runs
from likewise.store.job import Job
from likewise.types import Signature
from worlds import layouts

OPTIONS = {"max_iter": 4, "rounds": 2, "rule": "auto", "multilevel": False, "start": "identity", "gamma": 0.1}


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 5)
    return [Signature(rng.normal(size=(rng.integers(2, 5), 4)) + np.eye(4)[c]) for c in y], y


@pytest.fixture(scope="module")
def whole(world):
    records = []
    return WassersteinLMNN(**OPTIONS).fit(*world, watch=records.append), records


class Stopped(Exception):
    pass


def stop_after(n):
    seen = []

    def watch(record):
        seen.append(record)
        if len(seen) == n:
            raise Stopped

    return watch


def test_every_trial_and_every_iteration_is_told(whole):
    model, records = whole
    trials = [r for r in records if r["stage"] == "choice"]
    assert len(trials) == 6 * 5  # folds drawn twice, ρ
    steps = [{k: v for k, v in r.items() if k != "stage"} for r in records if r["stage"] == "learning"]
    assert steps == model.history_
    assert [r["iteration"] for r in steps] == list(range(len(steps)))


@pytest.mark.parametrize("solver", ["lbfgs", "fista"])
def test_iterations_are_told_while_they_happen(world, solver):
    model = WassersteinLMNN(solver=solver, rho0=0.1, rhot=0.1, max_iter=5, rounds=1)
    with pytest.raises(Stopped):
        model.fit(*world, watch=stop_after(2))
    assert not hasattr(model, "M0_")


@pytest.mark.parametrize("after", [1, 11, 30, 33])
def test_a_stopped_fit_resumes_to_the_same_bytes(world, whole, tmp_path, after):
    expected, records = whole
    with pytest.raises(Stopped), Job.begin(tmp_path, {}) as job:
        WassersteinLMNN(**OPTIONS).fit(*world, watch=stop_after(after), remember=job.keep)
    rest = []
    with Job.begin(tmp_path, {}) as job:
        model = WassersteinLMNN(**OPTIONS).fit(*world, watch=rest.append, remember=job.keep)
    assert len(job.resumed) == min(after // 5 - (after % 5 == 0), 6)
    assert len(rest) == len(records) - 5 * len(job.resumed)
    assert model.M0_.tobytes() == expected.M0_.tobytes()
    assert (model.rho_, model.rule_, model.start_) == (expected.rho_, expected.rule_, expected.start_)
    assert [r["objective"] for r in model.history_] == [r["objective"] for r in expected.history_]
    with Job.begin(tmp_path, {}) as job:  # a finished one is only read
        again = WassersteinLMNN(**OPTIONS).fit(*world, watch=stop_after(1), remember=job.keep)
    assert again.M0_.tobytes() == expected.M0_.tobytes()


def test_the_identity_is_of_all_that_decides(world):
    X, y = world
    options = WassersteinLMNN().get_params()
    own = fit_identity(X, y, options)
    assert fit_identity(X, y, {**options, "n_jobs": 7, "verbose": True}) == own
    moved = [Signature(X[0].points + 1e-12, X[0].weights), *X[1:]]
    levels = [Signature(s.points, s.weights, level="t") for s in X]
    others = [(moved, y, options), (X, y[::-1], options), (X, y, {**options, "mu": 0.4}), (levels, y, options)]
    assert own not in [fit_identity(*other) for other in others]


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────

WORDS = ("--max-iter", "4", "--rule", "auto", "--no-multilevel", "--start", "identity", "--gamma", "0.1")


@pytest.fixture
def file(world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    layouts.stack_sets("sets.npz", world[0], labels=[f"class {c}" for c in world[1]])
    return "sets.npz"


def fit(*words):
    return cli.main(["sets", "fit", *words])


def lines(folder="model.run"):
    return [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]


def stopped_fit(file, monkeypatch, after):
    """Run the command until so many steps are logged, then fail."""
    log, count = runs.Run.log, []

    def broken(self, step, **figures):
        count.append(step)
        if len(count) > after:
            raise InputError("pulled the plug")
        log(self, step, **figures)

    with monkeypatch.context() as patch:
        patch.setattr(runs.Run, "log", broken)
        assert fit(file, *WORDS) == 2


def test_the_command_goes_on_after_a_stop(file, monkeypatch):
    assert fit(file, "--out", "whole.safetensors", *WORDS) == 0
    expected = lines("whole.run")
    stopped_fit(file, monkeypatch, 12)
    assert len(lines()) == 12  # it grew while it learned
    assert sorted(Job.open("model.run/parts").finished()) == ["rho-0", "rho-1"]
    assert fit(file, *WORDS) == 0
    assert len(lines()) == len(expected), "the two trials of the fold that was cut short are logged once"
    assert Path("model.safetensors").read_bytes() == Path("whole.safetensors").read_bytes(), "one seed, the same bytes"
    assert [line["step"] for line in lines()] == list(range(len(expected)))
    assert not Path("model.run/parts").exists()
    one, two = (checkpoint.load(f"{name}.safetensors") for name in ("whole", "model"))
    assert one.M0_.tobytes() == two.M0_.tobytes()


def test_the_command_begins_anew_when_told_to(file, monkeypatch):
    stopped_fit(file, monkeypatch, 7)
    assert fit(file, *WORDS, "--no-resume") == 0
    assert [line["fold"] for line in lines()[:5]] == ["rho-0"] * 5
