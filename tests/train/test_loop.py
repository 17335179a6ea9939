"""The training loop: schedules, averages, early stop, and a killed run that goes on to the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from likewise.errors import FileError, InputError, LikewiseError
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import STATE, Loop, average_into, averaged
from likewise.train.options import LoopOptions


class Line:
    """y = w x + b from noisy points; batches are a function of the step."""

    def __init__(self, *, scores: list[float] | None = None, spoil: int | None = None) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.objective = nn.ParameterDict({"scale": nn.Parameter(torch.ones(()))})
        self.follower = nn.Linear(1, 1)
        self.scores, self.spoil, self.seen = list(scores or []), spoil, 0

    def groups(self) -> list[dict[str, Any]]:
        return [
            {"params": list(self.network.parameters()), "lr": 0.05, "weight_decay": 0.01},
            {"params": list(self.objective.parameters()), "lr": 0.01},
        ]

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        g = torch.Generator().manual_seed(step)
        x = torch.randn(16, 3, generator=g)
        y = x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.1 * torch.randn(16, 1, generator=g)
        loss = (self.network(x) * self.objective["scale"] - y).square().mean()
        return (loss * math.nan if step == self.spoil else loss), {"n": 16}

    def after(self, step: int) -> None:
        with torch.no_grad():
            self.follower.weight.add_(step)

    def extra(self) -> Mapping[str, nn.Module]:
        return {"follower": self.follower}

    def evaluate(self) -> Mapping[str, float]:
        self.seen += 1
        score = self.scores.pop(0) if self.scores else self.network[0].weight.sum().item()
        return {"score": score}


def test_it_learns() -> None:
    problem = Line()
    first = problem.loss(10_000)[0].item()
    Loop(problem, LoopOptions(steps=200), processes=ProcessGroup()).run()
    problem.network.eval()
    assert problem.loss(10_000)[0].item() < 0.1 * first


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    settings = LoopOptions(steps=20, ema=0.9, evaluate_every=4, save_every=0.0, clip=1.0, warmup=3)
    config = {"a": 1}
    whole = Line()
    want = Loop(whole, settings, run=Run.create(tmp_path / "whole", config, seed=0), processes=ProcessGroup())
    want.run()
    loop = Loop(Line(), settings, run=Run.create(tmp_path / "parts", config, seed=0), processes=ProcessGroup())
    for step in range(7):  # killed after the state of step 7 was written
        loop._step(step)
        loop.fitted.step += 1
        if loop.fitted.step % 4 == 0:
            loop._evaluate()
        loop.save()
    loop._step(7)  # logged, but in no state
    again = Line()
    run = Run.create(tmp_path / "parts", config, seed=0, resume=True)
    gone_on = Loop(again, settings, run=run, resume=True, processes=ProcessGroup())
    assert gone_on.fitted.step == 7
    gone_on.run()
    for a, b in ((whole.network, again.network), (whole.objective, again.objective), (whole.follower, again.follower)):
        for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
            assert torch.equal(x, y), name
    for key, x in want.average.items():
        assert torch.equal(x, gone_on.average[key]), key
    assert [m["step"] for m in run.metrics()] == [m["step"] for m in Run.open(tmp_path / "whole").metrics()]
    assert want.fitted.history == gone_on.fitted.history
    assert (want.fitted.best, want.fitted.best_step) == (gone_on.fitted.best, gone_on.fitted.best_step)


def test_a_state_of_another_configuration_is_refused(tmp_path: Path) -> None:
    Loop(Line(), LoopOptions(steps=1), run=Run.create(tmp_path / "a", {"a": 1}), processes=ProcessGroup()).run()
    other = Run.create(tmp_path / "b", {"a": 2})
    (tmp_path / "b" / STATE).write_bytes((tmp_path / "a" / STATE).read_bytes())
    with pytest.raises(FileError, match="another configuration"):
        Loop(Line(), LoopOptions(steps=1), run=other, resume=True, processes=ProcessGroup())
    (tmp_path / "b" / STATE).write_bytes((tmp_path / "a" / STATE).read_bytes()[:-40])
    with pytest.raises(FileError, match=r"damaged|truncated"):
        Loop(Line(), LoopOptions(steps=1), run=other, resume=True, processes=ProcessGroup())


def test_a_loss_that_is_no_number_stops_at_once() -> None:
    with pytest.raises(LikewiseError, match="step 3: the loss is nan; lower the learning rates"):
        Loop(Line(spoil=3), LoopOptions(steps=9), processes=ProcessGroup()).run()


def test_patience() -> None:
    problem = Line(scores=[0.1, 0.5, 0.4, 0.3, 0.9])
    fitted = Loop(problem, LoopOptions(steps=50, evaluate_every=5, patience=2), processes=ProcessGroup()).run()
    assert (fitted.step, fitted.best, fitted.best_step) == (20, 0.5, 10)


def test_the_best_is_kept_with_averaged_weights() -> None:
    kept = []
    problem = Line(scores=[0.1, 0.5, 0.4])
    settings = LoopOptions(steps=15, evaluate_every=5, ema=0.99)
    loop = Loop(problem, settings, processes=ProcessGroup())
    loop.keep_best = lambda: kept.append(averaged(problem.network))
    loop.run()
    assert len(kept) == 2
    assert not torch.equal(kept[-1]["0.weight"], problem.network[0].weight)
    with loop.weights():
        assert torch.equal(loop.average["0.weight"], problem.network[0].weight)


def test_averages_by_hand() -> None:
    net = nn.BatchNorm1d(1)
    kept = averaged(net)
    with torch.no_grad():
        net.weight.fill_(3.0)
        net.running_mean.fill_(10.0)
        net.num_batches_tracked.fill_(7)
    average_into(kept, net, 0.75)
    assert kept["weight"].item() == pytest.approx(1.5)
    assert kept["running_mean"].item() == pytest.approx(2.5)
    assert kept["num_batches_tracked"].item() == 7


def test_rates() -> None:
    cosine = LoopOptions(steps=100)
    assert [round(cosine.rate(s), 6) for s in (0, 50, 100)] == [1.0, 0.5, 0.0]
    assert LoopOptions(steps=10, schedule="linear").rate(5) == 0.5
    dropped = LoopOptions(steps=10, schedule="drop", drop_at=0.3, drop=0.2)
    assert [dropped.rate(s) for s in (0, 2, 3, 9)] == [1.0, 1.0, 0.2, 0.2]
    rising = LoopOptions(steps=10, schedule="constant", warmup=4)
    assert [rising.rate(s) for s in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    loop = Loop(Line(), LoopOptions(steps=4, schedule="linear"), processes=ProcessGroup())
    loop._step(2)  # and reach their groups
    assert [g["lr"] for g in loop.optimiser.param_groups] == pytest.approx([0.025, 0.005])


def test_parts_of_a_batch() -> None:
    assert ProcessGroup(1, 2).part(8) == slice(4, 8)
    with pytest.raises(InputError, match="7 images cannot be dealt evenly to 2"):
        ProcessGroup(0, 2).part(7)
    x = torch.ones(3, requires_grad=True)
    assert ProcessGroup().gather(x) is x
