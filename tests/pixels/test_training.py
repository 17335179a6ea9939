"""Bent photos, and training on them: it learns, it resumes to the same bits, two processes are one."""

import dataclasses

import numpy as np
import pytest
import torch

from likewise.errors import InputError
from likewise.media import write_image
from likewise.pixels.data import Bent, Photos, relit
from likewise.pixels.geometry import grid, sample
from likewise.pixels.life.network import Network, log_dual
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import textures
from likewise.pixels.training import Config, Learner, Training, _run, contrast, rendered, scenes_of, train
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


def test_the_bend_explains_the_second_picture(photos):
    bent = photos.bent(3, (64, 80), (0,), light=0.0)
    points = bent.warp.backward(grid(64, 80)[None])
    seen = sample(bent.b, points)
    inside = ((points > 1) & (points < torch.tensor([78.0, 62.0]))).all(-1)[:, None].expand_as(seen)
    assert (seen - bent.bent)[inside].abs().mean() < 0.02
    assert (bent.b - bent.bent)[inside].abs().mean() > 0.05


def test_a_pair_depends_on_its_number_alone(photos):
    whole, part = photos.bent(4, (64, 64), (3, 1)), photos.bent(4, (64, 64), (3, 1), part=slice(1, 3))
    assert torch.equal(whole.b[1:3], part.b)
    assert torch.equal(whole.bent[1:3], part.bent)
    points = grid(8, 8)[None]
    assert torch.equal(whole.warp.backward(points)[1:3], part.warp.backward(points))


def test_the_same_seed_gives_the_same_bytes_and_another_another(photos):
    one, two, other = (photos.bent(2, (64, 64), s) for s in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(one.bent, two.bent)
    assert not torch.equal(one.bent, other.bent)


def test_light_stays_in_range_and_moves_nothing():
    """Relit twice, an image with one bright column still has its largest step there."""
    x = torch.full((6, 3, 48, 48), 0.25)
    x[:, :, :, 24:] = 0.75
    y = relit(x, torch.Generator().manual_seed(0), night=0.0)
    assert y.min() >= 0
    assert y.max() <= 1
    edge = (y[..., 1:] - y[..., :-1]).abs().mean((1, 2)).argmax(-1)
    assert ((edge - 23).abs() <= 1).float().mean() > 0.8
    assert torch.equal(relit(x, torch.Generator(), strength=0.0), x)


def test_night_is_dark():
    x = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    day = relit(x, torch.Generator().manual_seed(1), night=0.0).mean((1, 2, 3))
    dark = relit(x, torch.Generator().manual_seed(1), night=1.0).mean((1, 2, 3))
    assert dark.median() < day.median()


def test_the_truth_of_cells_against_the_warp(photos):
    warp = photos.bent(2, (64, 80), (5,)).warp
    truth = Learner(Network(8, 8)).truth(Bent(torch.zeros(2, 3, 64, 80), torch.zeros(0), warp))
    for i, j in ((3, 4), (8, 15)):
        there, _ = warp.forward(torch.tensor([[[4.0 * j + 1, 4.0 * i + 1]]]))
        wanted = (there[:, 0] - 1) / 4 - torch.tensor([j, i])
        assert torch.allclose(truth.there[:, i, j], wanted, atol=1e-3)


def test_contrast_is_least_for_the_truth(photos):
    """Similarities that single out the true cells cost less than any shuffled ones; hand case: −log P."""
    warp = photos.bent(1, (64, 64), (6,), strength=0.0).warp  # nothing moves
    truth = Learner(Network(8, 8)).truth(Bent(torch.zeros(1, 3, 64, 64), torch.zeros(0), warp))
    right = 20 * torch.eye(256)[None]
    wrong = right[:, torch.randperm(256, generator=torch.Generator().manual_seed(0))]
    assert contrast(log_dual(right), truth) < 0.01
    assert contrast(log_dual(wrong), truth) > 5
    flat = contrast(log_dual(torch.zeros(1, 256, 256)), truth)
    assert float(flat) == pytest.approx(2 * np.log(256), rel=1e-3)


def test_a_folder_is_read_and_small_photos_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    write_image(tmp_path / "large.png", rng.integers(0, 255, (300, 400, 3), dtype=np.uint8))
    write_image(tmp_path / "small.png", rng.integers(0, 255, (50, 60, 3), dtype=np.uint8))
    result = Photos.folder(tmp_path, shortest=200)
    assert len(result) == 1
    assert min(result.pictures[0].shape[:2]) == 200
    with pytest.raises(InputError, match="photos"):
        Photos.folder(tmp_path, shortest=2000)
    with pytest.raises(InputError, match="too few"):
        result.split(0.5)


# ------------------------------------------------------------------------------------------------------------- training


def test_the_stages_follow_each_other():
    c = Config(warm=2, refine=1, joint=3)
    assert [c.stage(i) for i in range(6)] == ["warm", "warm", "refine", "joint", "joint", "joint"]
    assert c.total == 6


@pytest.mark.slow
def test_contrast_falls(photos):
    c = dataclasses.replace(SMALL, warm=8, refine=0, joint=0, head_lr=5e-3, bend=0.3, light=0.0, schedule="constant")
    problem = Training(photos, None, c)
    fixed = problem._bent(0, "warm")
    before = problem.contrast(fixed).item()
    Loop(problem, problem.settings).run()
    assert problem.contrast(fixed).item() < before - 0.05


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
    F = Learner(Network(8, 8)).epipolar(views.F)
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
