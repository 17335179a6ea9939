"""Training on photos: which loss teaches what, triplets and their truth; it learns, resumes, two processes are one."""

import dataclasses

import numpy as np
import pytest
import torch

from likewise.errors import ConfigError, InputError, ShapeError
from likewise.media import write_image
from likewise.pixels import life
from likewise.pixels.aligner import Aligner
from likewise.pixels.data import Photos, bend, relit
from likewise.pixels.geometry import grid, sample
from likewise.pixels.life.network import Network, log_dual
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import textures
from likewise.pixels.training import Config, Learner, Training, _near, contrast, rendered, scenes_of, train
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Loop, create_run

SMALL = Config(
    refine=1, joint=2, height=64, width=96, pairs=2, scenes=2, hidden=8, iters=2, validation=0.2, evaluate_every=100,
    keep="last",
)  # fmt: skip
ALONE = {"sed": 0.0, "bit": 0.0, "cycle": 0.0, "contrast": 0.0}


@pytest.fixture(scope="module")
def photos():
    return Photos([np.asarray(x) for x in textures.procedural(0, 5, side=128)])


@pytest.fixture(scope="module")
def scenes(photos):
    return rendered(photos)


@pytest.fixture(autouse=True)
def few_examined(monkeypatch):
    monkeypatch.setattr("likewise.pixels.training.EXAMINED", 1)


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def staying(network):
    """A recurrence that leaves every flow as it is: the first share of a step is of staying."""
    with torch.no_grad():
        network.refine.head[2].bias.copy_(torch.tensor([0.0, 0, 99, 0, 0, 0]))
    return network


# --------------------------------------------------------------------------------------------------------- bent photos


@pytest.mark.parametrize("border", [(0, 0), (8, 12)])
def test_the_bend_explains_the_second_image(border):
    """B′[p] = B[T⁻¹ p] to the last bit, with what the border has beyond B's frame."""
    images = torch.rand(3, 3, 64 + 2 * border[0], 96 + 2 * border[1], generator=source())
    made = bend(images, source(1), border=border, light=0.0)
    assert torch.equal(made.b, images[:, :, border[0] : border[0] + 64, border[1] : border[1] + 96])
    points = made.warp.backward(grid(64, 96)[None])
    wanted = sample(images, points + torch.tensor(border[::-1]), padding="border")
    assert torch.equal(made.bent, wanted)
    inside = ((points > 0) & (points < torch.tensor([95.0, 63.0]))).all(-1)[:, None].expand_as(wanted)
    assert torch.allclose(made.bent[inside], sample(made.b, points)[inside], atol=1e-5)
    assert (made.b - made.bent)[inside].abs().mean() > 0.05
    lit = bend(images, source(1), border=border, light=1.0)
    assert torch.equal(lit.warp.backward(grid(4, 4)[None]), made.warp.backward(grid(4, 4)[None]))
    assert not torch.equal(lit.b, made.b)
    assert not torch.equal(lit.bent, made.bent)


def test_a_pair_is_a_function_of_the_seed_and_of_its_number(photos):
    whole, part, other = (
        photos.bent(4, (64, 64), seed, part=part)
        for seed, part in (((3, 1), slice(None)), ((3, 1), slice(1, 3)), ((3, 2), slice(1, 3)))
    )
    assert torch.equal(whole.b[1:3], part.b)
    assert torch.equal(whole.bent[1:3], part.bent)
    points = grid(8, 8)[None]
    assert torch.equal(whole.warp.backward(points)[1:3], part.warp.backward(points))
    assert not torch.equal(part.bent, other.bent)


def test_light_stays_in_range_and_moves_nothing():
    """Relit twice, an image with one bright column still has its largest step there."""
    x = torch.full((6, 3, 48, 48), 0.25)
    x[:, :, :, 24:] = 0.75
    y = relit(x, source(), night=0.0)
    assert y.min() >= 0
    assert y.max() <= 1
    edge = (y[..., 1:] - y[..., :-1]).abs().mean((1, 2)).argmax(-1)
    assert ((edge - 23).abs() <= 1).float().mean() > 0.8
    assert torch.equal(relit(x, torch.Generator(), strength=0.0), x)


def test_night_is_dark():
    x = torch.rand(40, 3, 32, 32, generator=source())
    day, dark = (relit(x, source(1), night=share).mean((1, 2, 3)).median() for share in (0.0, 1.0))
    assert dark < day


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


# -------------------------------------------------------------------------------------------------------------- learner


def test_the_truth_of_cells_against_the_warp(photos):
    bent = photos.bent(2, (64, 96), (5,))
    truth = Learner(Network(8)).truth(bent)
    assert truth.there.shape == (2, 8, 12, 2)
    for i, j in np.ndindex(8, 12):
        pixel = torch.tensor([[[8 * j + 3.5, 8 * i + 3.5]]])
        for flow, ends in ((truth.there, bent.warp.forward(pixel)[0]), (truth.back, bent.warp.backward(pixel))):
            assert torch.allclose(flow[:, i, j], (ends[:, 0] - pixel[0, 0]) / 8, atol=1e-3)
    of_pixels = Learner(RAFT("tiny")).truth(bent)
    assert of_pixels.there.shape == (2, 64, 96, 2)
    ends = bent.warp.forward(torch.tensor([[[20.0, 30.0]]]))[0][:, 0]
    assert torch.allclose(of_pixels.there[:, 30, 20], ends - torch.tensor([20.0, 30.0]), atol=1e-3)


def test_contrast_is_least_for_the_truth(photos):
    """Similarities that single out the true cells cost less than any shuffled ones; hand case: −log P."""
    still = photos.bent(1, (64, 96), (6,), strength=0.0)  # nothing moves
    truth, n = Learner(Network(8)).truth(still), 96
    right = 20 * torch.eye(n)[None]
    wrong = right[:, torch.randperm(n, generator=source())]
    assert contrast(log_dual(right), truth) < 0.01
    assert contrast(log_dual(wrong), truth) > 5
    flat = contrast(log_dual(torch.zeros(1, n, n)), truth)
    assert float(flat) == pytest.approx(2 * np.log(n), rel=1e-3)


def test_cells_have_their_own_fundamental_matrix(scenes):
    """SED in cells under Sᵀ F S, times 8, is SED in pixels under F; a RAFT's cells are pixels."""
    F = scenes(1, (64, 96), (0,)).F
    x, y = (10 * torch.rand(20, 2, generator=source(s), dtype=F.dtype) for s in (1, 2))
    wanted = life.sed(8 * x + 3.5, 8 * y + 3.5, F[0], eps=0.0)
    result = life.sed(x, y, Learner(Network(8)).epipolar(F)[0], eps=0.0)
    assert wanted.max() > 1
    assert torch.allclose(8 * result, wanted)
    assert torch.equal(Learner(RAFT("tiny")).epipolar(F), F)


def test_the_last_pairs_start_where_they_are_told():
    learner = Learner(staying(Network(8)))
    fa, fb = (torch.nn.functional.normalize(torch.randn(3, 64, 8, 12, generator=source(s)), dim=1) for s in (0, 1))
    own = learner.network.starts(fa, fb)
    near = torch.randn(1, 8, 12, 2, generator=source(2)), torch.randn(1, 8, 12, 2, generator=source(3))
    none = near[0][:0], near[1][:0]
    for given, last in ((near, near), (none, None), (None, None)):
        ways = learner.ways(fa, fb, 2, given)
        assert len(ways.there) == len(ways.back) == 2
        for flows, start, told in zip((ways.there, ways.back), own, last or (None, None), strict=True):
            wanted = start.flow if told is None else torch.cat([start.flow[:2], told])
            assert torch.allclose(flows[-1], wanted, atol=1e-5)
        assert torch.allclose(ways.start, ways.there[0], atol=1e-5)


def test_what_is_told_is_near_the_truth(photos):
    truth = Learner(Network(8)).truth(photos.bent(4, (64, 96), (7,)))
    near, again, other = (_near(truth, 3, seed) for seed in ((1, 2), (1, 2), (1, 3)))
    for flow, known, same, drawn in zip(near, (truth.there, truth.back), again, other, strict=True):
        off = flow - known[1:]
        assert 0.05 < off.abs().mean() < 2
        assert (off[:, 1:] - off[:, :-1]).abs().max() < 2.5  # changes slowly
        assert torch.equal(flow, same)
        assert not torch.equal(flow, drawn)
    assert _near(truth, 0, (1,))[0].shape == (0, 8, 12, 2)


# ---------------------------------------------------------------------------------------------- which loss teaches what


def gradients(photos, scenes, stage, head=0.05, **weights):
    """Sums of |gradient| in the encoder and in every parameter of the recurrence, after one step of a stage."""
    config = dataclasses.replace(SMALL, **{**ALONE, **weights})
    problem = Training(photos, scenes, config)
    network = problem.network.train()
    # new, the head's last layer has weights of zero: what lies before it would get no gradient whatever the code
    torch.nn.init.normal_(network.refine.head[2].weight, std=head, generator=source())
    step = {"refine": 0, "joint": config.refine}[stage]
    assert config.stage(step) == stage
    total, parts = problem.loss(step)
    assert set(parts) == set(weights)
    total.backward()
    sums = [
        {k: 0.0 if p.grad is None else float(p.grad.abs().sum()) for k, p in module.named_parameters()}
        for module in (network.encoder, network.refine)
    ]
    assert all(np.isfinite(list(s.values())).all() for s in sums)
    return sums


@pytest.mark.parametrize("loss", ["sed", "cycle", "bit"])
def test_each_loss_of_life_reaches_encoder_and_recurrence(photos, scenes, loss):
    """In the joint stage each alone, every weight of both; before, the recurrence only."""
    encoder, refine = gradients(photos, scenes, "joint", **{loss: 1.0})
    assert min(encoder.values()) > 0
    assert min(refine.values()) > 0
    encoder, refine = gradients(photos, scenes, "refine", **{loss: 1.0})
    assert max(encoder.values()) == 0
    assert min(refine.values()) > 0


@pytest.mark.parametrize("loss", ["sed", "cycle", "bit"])
def test_correlations_alone_carry_a_loss_to_the_encoder(photos, scenes, loss):
    """With a head of zero the context teaches nothing: what is left came through the windows' soft-argmaxes."""
    encoder, refine = gradients(photos, scenes, "joint", head=0.0, **{loss: 1.0})
    assert min(encoder.values()) > 0
    assert refine["context.weight"] == 0
    assert refine["log_tau"] > 0


@pytest.mark.parametrize("stage", ["refine", "joint"])
def test_contrast_reaches_the_encoder_alone(photos, scenes, stage):
    encoder, refine = gradients(photos, scenes, stage, contrast=1.0)
    assert min(encoder.values()) > 0
    assert max(refine.values()) == 0


def test_the_features_of_both_images_are_taught(photos):
    """Each way alone, and contrast: neither image's features are held fast."""
    learner = Learner(Network(8))
    truth = learner.truth(photos.bent(2, (64, 96), (8,)))
    f = [torch.nn.functional.normalize(torch.randn(2, 64, 8, 12, generator=source(s)), dim=1) for s in (0, 1)]
    fa, fb = (x.requires_grad_() for x in f)
    ways = learner.ways(fa, fb, 1)
    for value in (ways.there[-1].square().sum(), ways.back[-1].square().sum(), learner.contrast(fa, fb, truth)):
        assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(value, (fa, fb), retain_graph=True))


def test_a_step_is_the_weighted_sum_of_its_losses(photos, scenes):
    weights = {"sed": 0.3, "bit": 0.7, "cycle": 0.2, "contrast": 0.4}
    (total, parts), (_, ones) = (
        Training(photos, scenes, dataclasses.replace(SMALL, **given)).loss(1)
        for given in (weights, dict.fromkeys(weights, 1.0))
    )
    assert {k: float(v) for k, v in parts.items()} == pytest.approx({k: w * float(ones[k]) for k, w in weights.items()})
    assert float(total.detach()) == pytest.approx(sum(map(float, parts.values())))


def test_a_triplet_is_two_views_and_the_second_one_bent(photos, scenes):
    """A, B as the scenes give them, B′ = T(B), whose truth BiT is asked for, along with the photos' own."""
    problem = Training(photos, scenes, dataclasses.replace(SMALL, light=0.0))
    seen, bents = [], []
    encode, truth = problem.learner.encode, problem.learner.truth
    problem.learner.encode = lambda images: seen.append(images) or encode(images)
    problem.learner.truth = lambda bent: bents.append(bent) or truth(bent)
    problem.parts(1)
    views = scenes(2, (64, 96), (0, 3, 1))
    photo, triplet = bents
    assert torch.equal(triplet.b, views.b)
    assert torch.equal(triplet.bent, sample(views.b, triplet.warp.backward(grid(64, 96)[None]), padding="border"))
    (images,) = seen  # encoded once
    assert torch.equal(images, torch.cat([photo.b, photo.bent, views.b, triplet.bent, views.a, views.b]))
    bents.clear()
    problem.parts(1)
    again = bents[1].bent
    problem.parts(2)
    assert torch.equal(again, triplet.bent)
    assert not torch.equal(bents[3].bent, triplet.bent)


# ------------------------------------------------------------------------------------------------------------- training


def test_the_stages_follow_each_other():
    c = Config(refine=2, joint=3)
    assert [c.stage(i) for i in range(6)] == ["refine"] * 2 + ["joint"] * 4
    assert (c.total, c.size) == (5, (160, 224))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"network": "huge"}, "network: expected 'cells'"),
        ({"refine": -1}, "refine: expected integer ≥ 0"),
        ({"joint": 1.5}, "joint: expected integer ≥ 0"),
        ({"height": 63}, "height: expected integer ≥ 64"),
        ({"hidden": 7}, "hidden: expected integer ≥ 8"),
        ({"iters": 0}, "iters: expected integer ≥ 1"),
        ({"night": 1.1}, "night: expected number ≥ 0 and ≤ 1"),
        ({"seeded": -0.1}, "seeded: expected number ≥ 0 and ≤ 1"),
        ({"sed": -1}, "sed: expected number ≥ 0"),
        ({"gamma": 0}, "gamma: expected number > 0 and ≤ 1"),
        ({"bit_scale": 0}, "bit_scale: expected number > 0"),
        ({"lr": float("nan")}, "lr: expected number ≥ 0, got nan"),
        ({"cycle_mode": "half"}, "cycle_mode: expected 'adaptive' or 'full'"),
        ({"keep": "first"}, "keep: expected 'best' or 'last'"),
    ],
)
def test_options_have_bounds(values, words):
    with pytest.raises(ConfigError) as caught:
        Config(**values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "given", "error", "words"),
    [
        ({}, None, InputError, "scenes: SED and cycle need pairs"),
        ({"pairs": 0, "scenes": 0}, None, InputError, "pairs, scenes: expected one of them"),
        ({"height": 72}, "rendered", ShapeError, "sides that 32 divides"),
    ],
)
def test_refusals(photos, options, given, error, words):
    with pytest.raises(error, match=words):
        train(photos, dataclasses.replace(SMALL, **options), scenes=given)


def test_each_group_has_its_rate():
    network = Network(8)
    groups = Learner(network).groups(dataclasses.replace(SMALL, lr=1e-5, refine_lr=1e-3))
    rates = {id(p): g["lr"] for g in groups for p in g["params"]}
    assert {rates[id(p)] for p in network.encoder.parameters()} == {1e-5}
    assert len(rates) == len(list(network.parameters()))


def test_thirty_steps_on_one_pair_lower_its_loss(photos):
    c = dataclasses.replace(
        SMALL, **ALONE | {"bit": 1.0}, refine=0, joint=30, scenes=0, pairs=1, bend=0.5, light=0.3, night=0.0,
        refine_lr=3e-3, schedule="constant", seeded=0.0,
    )  # fmt: skip
    problem = Training(photos, None, c)
    fixed = problem._bent(0)
    problem._bent = lambda step: fixed
    before = float(problem.parts(0)["bit"].detach())
    Loop(problem, problem.settings).run()
    assert float(problem.parts(0)["bit"].detach()) < 0.8 * before


def test_a_run_goes_on_to_the_same_bits(photos, tmp_path):
    whole = train(photos, SMALL, out=tmp_path / "whole")
    assert isinstance(whole, Aligner)
    problem = Training(photos, scenes_of("rendered", photos), SMALL)
    said = dataclasses.asdict(SMALL) | {"photos": len(photos), "processes": 1}
    run = create_run(tmp_path / "part", said, seed=SMALL.seed, resume=False, processes=ProcessGroup())
    loop = Loop(problem, dataclasses.replace(problem.settings), run=run)
    for _ in range(2):
        loop._step(loop.fitted.step)
        loop.fitted.step += 1
    loop.save()
    again = train(photos, SMALL, out=tmp_path / "part", resume=True)
    new = Training(photos, None, dataclasses.replace(SMALL, scenes=0)).network
    states = [m.state_dict() for m in (whole.network, again.network, new)]
    assert all(torch.equal(value, states[1][key]) for key, value in states[0].items())
    assert {k for k, v in states[0].items() if not torch.equal(v, states[2][k])} == dict(new.named_parameters()).keys()


def test_a_run_continues_from_a_model(photos):
    network = Network(8)
    start = Aligner(network, name="n", recipe={}, figures={})
    made = train(photos, dataclasses.replace(SMALL, lr=0.0, refine_lr=0.0), start=start)
    for key, value in network.state_dict().items():
        assert torch.equal(made.network.state_dict()[key], value), key


@pytest.mark.parametrize("stage", [0, 1])
def test_two_processes_add_up_to_one(photos, scenes, stage):
    """The gradients of two halves of a batch sum to that of the whole."""
    c = dataclasses.replace(SMALL, pairs=4, seeded=0.0, night=0.0)
    whole, *parts = (Training(photos, scenes, c, processes=p) for p in (None, ProcessGroup(0, 2), ProcessGroup(1, 2)))
    for problem in (whole, *parts):
        problem.loss(stage)[0].backward()
    for name in ("encoder", "refine"):
        one, first, second = (
            torch.cat([p.grad.flatten() for p in getattr(t.network, name).parameters() if p.grad is not None])
            for t in (whole, *parts)
        )
        # each half is a mean over its own known cells, the whole over all: equal up to their share
        assert torch.nn.functional.cosine_similarity(first + second, one, dim=0) > 0.97
        assert torch.nn.functional.cosine_similarity(first, one, dim=0) < 0.97


def test_a_raft_is_trained_by_the_same_loop(photos, scenes):
    c = dataclasses.replace(SMALL, network="tiny", refine=1, joint=1)
    before = Training(photos, scenes, c).network.state_dict()
    made = train(photos, c, scenes=scenes)
    assert isinstance(made, RAFT)
    assert any(not torch.equal(v, before[k]) for k, v in made.state_dict().items())


def test_scenes_are_a_function_of_the_seed(scenes):
    one, two, other = scenes(2, (64, 64), (1, 2)), scenes(2, (64, 64), (1, 2)), scenes(2, (64, 64), (1, 3))
    assert torch.equal(one.a, two.a)
    assert not torch.equal(one.a, other.a)
