"""Training: it learns, it goes on to the same bits, its stages are what they say, two processes are one."""

import dataclasses

import numpy as np
import pytest
import torch

from likewise.errors import InputError
from likewise.pixels.data import Photos
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import textures
from likewise.pixels.training import CellLearner, Config, Training, rendered, scenes_of, train
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Loop

SMALL = Config(
    warm=2, refine=1, joint=2, height=64, width=64, pairs=2, share=1.0, scenes=2, dim=8, hidden=8, iters=2,
    validation=0.2, evaluate_every=100, keep="last",
)  # fmt: skip


@pytest.fixture(scope="module")
def photos():
    return Photos([np.asarray(x) for x in textures.procedural(0, 5, side=128)])


@pytest.fixture(autouse=True)
def few_examined(monkeypatch):
    monkeypatch.setattr("likewise.pixels.training.EXAMINED", 1)
    monkeypatch.setattr("likewise.pixels.training.BEGIN", 1)


def test_the_stages_follow_each_other():
    c = Config(warm=2, refine=1, joint=3)
    assert [c.stage(i) for i in range(6)] == ["warm", "warm", "refine", "joint", "joint", "joint"]
    assert c.total == 6


@pytest.mark.slow
def test_contrast_falls(photos):
    c = dataclasses.replace(SMALL, warm=8, refine=0, joint=0, head_lr=5e-3, bend=0.3, light=0.0, schedule="constant")
    problem = Training(photos, None, c)
    fixed = problem._bent(0, "warm")
    before = problem.learner.contrast(fixed).item()
    Loop(problem, problem.settings).run()
    assert problem.learner.contrast(fixed).item() < before - 0.05


@pytest.mark.slow
def test_the_encoder_stays_while_the_recurrence_learns(photos):
    c = dataclasses.replace(SMALL, warm=0, refine=2, joint=0)
    problem = Training(photos, None, c)
    kept = {k: v.clone() for k, v in problem.network.state_dict().items()}
    Loop(problem, problem.settings).run()
    moved = {k for k, v in problem.network.state_dict().items() if not torch.equal(v, kept[k])}
    assert moved
    assert all(k.startswith("refine.") for k in moved)


@pytest.mark.slow
def test_a_run_goes_on_to_the_same_bits(photos, tmp_path):
    whole = train(photos, SMALL, out=tmp_path / "whole")
    problem = Training(photos, scenes_of("rendered", photos), SMALL)
    from likewise.pixels.training import _run

    run = _run(tmp_path / "part", photos, SMALL, False, ProcessGroup())
    loop = Loop(problem, dataclasses.replace(problem.settings), run=run)
    for _ in range(3):
        loop._step(loop.fitted.step)
        loop.fitted.step += 1
    loop.save()
    again = train(photos, SMALL, out=tmp_path / "part", resume=True)
    for key, value in whole.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[key]), key


@pytest.mark.slow
def test_two_processes_add_up_to_one(photos):
    """The gradients of two halves of a batch sum to that of the whole."""
    c = dataclasses.replace(SMALL, warm=1, refine=0, joint=0)
    whole = Training(photos, None, c)
    whole.loss(0)[0].backward()
    parts = [Training(photos, None, c, processes=ProcessGroup(rank, 2)) for rank in (0, 1)]
    for part in parts:
        part.network.load_state_dict(whole.network.state_dict())
        part.loss(0)[0].backward()
    for key, p in whole.network.encoder.project.named_parameters():
        total = sum(dict(part.network.encoder.project.named_parameters())[key].grad for part in parts)
        # each half is a mean over its own known cells, the whole over all: equal up to their share
        assert torch.nn.functional.cosine_similarity(total.flatten(), p.grad.flatten(), dim=0) > 0.99


def test_a_raft_is_trained_by_the_same_loop(photos):
    made = train(photos, dataclasses.replace(SMALL, network="tiny", warm=0, refine=1, joint=1))
    assert isinstance(made, RAFT)


def test_cells_have_their_own_fundamental_matrix(photos):
    """y ᵀ F x of pixels is that of cells under Sᵀ F S."""
    views = rendered(photos)(1, (64, 64), (0,))
    F = CellLearner.epipolar(None, views.F)
    cell = torch.tensor([3.0, 5.0, 1.0], dtype=F.dtype)
    pixel = torch.tensor([13.0, 21.0, 1.0], dtype=F.dtype)
    assert torch.allclose(cell @ F[0] @ cell, pixel @ views.F[0] @ pixel)


@pytest.mark.slow
def test_scenes_are_a_function_of_the_seed(photos):
    source = rendered(photos)
    one, two, other = source(2, (64, 64), (1, 2)), source(2, (64, 64), (1, 2)), source(2, (64, 64), (1, 3))
    assert torch.equal(one.a, two.a)
    assert not torch.equal(one.a, other.a)


def test_the_joint_stage_asks_for_scenes(photos):
    with pytest.raises(InputError, match="scenes"):
        train(photos, SMALL, scenes=None)
