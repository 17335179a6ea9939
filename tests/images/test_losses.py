"""DiVA equation by equation: triplets, tasks, the errata, and the sign of the decorrelation."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from likewise.errors import InputError
from likewise.images import losses
from worlds.shapes import batch, unit


@pytest.mark.parametrize("kind", ["disc", "shared", "intra"])
def test_a_ranked_task_is_the_loop_over_its_triplets(kind: str) -> None:
    b = batch()
    task = losses.TripletMargin(1, kind, 3).double()
    with torch.no_grad():
        task.beta.copy_(torch.tensor([1.0, 1.2, 1.4]))
    z = b.z[:, 1]
    mined = task.mine(losses.distances(z), b.y, 6, b.generator(1))
    terms = []
    for a, p, n in zip(*mined, strict=True):
        beta = task.beta[b.y[a]].item()
        terms.append(max(0.2 + math.dist(z[a].tolist(), z[p].tolist()) - beta, 0))
        terms.append(max(0.2 - math.dist(z[a].tolist(), z[n].tolist()) + beta, 0))
    active = [t for t in terms if t > 0]
    assert task(b).item() == pytest.approx(sum(active) / len(active), rel=1e-6)


def test_boundaries_are_learned() -> None:
    """The text has them fixed; the released code, like this, learns one for each class."""
    task = losses.TripletMargin(
        0, "disc", 3, beta=0.9
    ).double()  # more pairs too far than too near: the boundary must rise
    task(batch()).backward()
    assert task.beta.grad is not None
    assert task.beta.grad.sum() < 0


def filled(task: losses.Contrast, rows: torch.Tensor, ids: torch.Tensor) -> losses.Contrast:
    task.double().queue.push(rows, ids)
    return task


def loop_of_dance(task: losses.Contrast, b: losses.Batch, *, weighted: bool, scale: str) -> float:
    tau, dim, total = task.tau.item(), b.z.shape[2], 0.0
    for i, z in enumerate(b.z[:, task.head]):
        weights, similarities = [], []
        for row, identity in zip(task.queue.rows, task.queue.ids, strict=True):
            if identity < 0 or identity == b.ids[i]:
                continue
            d = max(math.dist(z.tolist(), row.tolist()), 0.5)
            q = d ** (dim - 2) * (1 - d * d / 4) ** ((dim - 3) / 2)
            weights.append(float(d < 1.4) / q if weighted else 1.0)
            similarities.append(float(z @ row))
        if not sum(weights):
            weights = [1.0] * len(weights)
        share = (len(weights) if scale == "count" else 1.0) / sum(weights)
        near = math.exp(float(z @ b.moved[i, task.head]) / tau)
        far = sum(w * share * math.exp(s / tau) for w, s in zip(weights, similarities, strict=True))
        total -= math.log(near / (near + far))
    return total / len(b.z)


@pytest.mark.parametrize(("weighted", "scale"), [(True, "one"), (True, "count"), (False, "count")])
def test_dance_is_its_loop(weighted: bool, scale: str) -> None:
    """[DiVA Eq. 6] with its slips mended: the sum is over negatives, and the positive is in the denominator."""
    b = batch()
    task = filled(
        losses.Contrast(3, 6, 16, tau=0.2, weighted=weighted, scale=scale), unit(10, 6, seed=5), torch.arange(10)
    )
    assert task(b).item() == pytest.approx(loop_of_dance(task, b, weighted=weighted, scale=scale), rel=1e-6)


def test_the_positive_is_in_the_denominator() -> None:
    """The loss cannot be negative; without the positive it would be, here."""
    b = batch(4, each=2)
    b = losses.Batch(b.z, b.y, b.ids, moved=b.z.clone())
    task = filled(losses.Contrast(0, 6, 8, tau=0.1), -b.z[:, 0], torch.arange(100, 104))
    assert task(b).item() >= 0.0


def test_even_weights_by_count_are_the_usual_noise_contrast() -> None:
    b = batch()
    negatives = unit(10, 6, seed=5)
    task = filled(losses.Contrast(0, 6, 10, tau=0.3, weighted=False, scale="count"), negatives, torch.arange(50, 60))
    z, p = b.z[:, 0], b.moved[:, 0]
    logits = torch.cat([(z * p).sum(1, keepdim=True), z @ negatives.T], 1) / 0.3
    want = nn.functional.cross_entropy(logits, torch.zeros(12, dtype=torch.int64))
    assert task(b).item() == pytest.approx(want.item(), rel=1e-6)


def test_weights_sum_to_one_in_each_row() -> None:
    """λ is never given; here a row sums to 1. (The released code normalises columns, over the batch.)"""
    task = filled(losses.Contrast(0, 6, 16), unit(9, 6, seed=5), torch.arange(9))
    allowed = (task.queue.ids >= 0)[None].expand(4, -1)
    assert task.weights(unit(4, 6), allowed).sum(1).tolist() == pytest.approx([1.0] * 4)


def test_a_picture_is_not_its_own_negative() -> None:
    b = batch(4, each=2)
    alone = filled(losses.Contrast(0, 6, 4, tau=0.1), b.z[:, 0].clone(), b.ids)
    others = losses.Batch(b.z, b.y, b.ids + 100, moved=b.moved)
    assert alone(b).item() < alone(others).item()  # with other numbers the same rows count as negatives


def test_a_small_temperature_is_zero_at_once() -> None:
    """τ = 0.01 of the paper: the loss of a picture that is nearer to its other view than to any other vanishes."""
    z = unit(8, 1, 16)
    b = losses.Batch(
        z, torch.arange(8), torch.arange(8), moved=nn.functional.normalize(z + 0.1 * unit(8, 1, 16, seed=3), dim=2)
    )
    small = filled(losses.Contrast(0, 16, 8, tau=0.01), unit(8, 16, seed=4), torch.arange(20, 28))
    usable = filled(losses.Contrast(0, 16, 8, tau=0.1), unit(8, 16, seed=4), torch.arange(20, 28))
    assert small(b).item() < 1e-6 < usable(b).item()


def test_an_empty_queue_costs_nothing() -> None:
    b = batch()
    z = b.z.clone().requires_grad_()
    loss = losses.Contrast(0, 6, 8).double()(losses.Batch(z, b.y, b.ids, moved=b.moved))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert z.grad.abs().max() < 1e-12  # and a number, not NaN


def test_no_gradient_through_the_momentum_network() -> None:
    b = batch()
    moved = b.moved.clone().requires_grad_()
    task = filled(losses.Contrast(0, 6, 8), unit(8, 6, seed=5), torch.arange(50, 58))
    z = b.z.clone().requires_grad_()
    task(losses.Batch(z, b.y, b.ids, moved=moved)).backward()
    assert moved.grad is None
    assert z.grad.abs().sum() > 0
    with pytest.raises(InputError, match="second view"):
        task(losses.Batch(z, b.y, b.ids))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_a_queue_holds_the_last_rows(pushes: list[int]) -> None:
    queue, said = losses.Queue(10, 2), []
    for count in pushes:
        new = list(range(len(said), len(said) + count))
        queue.push(torch.tensor([[float(i), -float(i)] for i in new]), torch.tensor(new))
        said += new
    assert sorted(i for i in queue.ids.tolist() if i >= 0) == said[-10:]
    for row, identity in zip(queue.rows, queue.ids, strict=True):
        if identity >= 0:
            assert row.tolist() == [float(identity), -float(identity)]


# -------------------------------------------------------------------------------------------------- decorrelation


def test_decorrelation_by_hand() -> None:
    """D² c of φ_a = (1, 0) and ψ(φ_b) = (0.6, 0.8): 4 · mean(0.36, 0) = 0.72."""
    c = losses.Decorrelation(2)
    with torch.no_grad():
        for p in c.parameters():
            p.zero_()
        c.psi[2].bias.copy_(torch.tensor([3.0, 4.0]))
    assert c(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(0.72)


def test_unrelated_rows_are_about_one() -> None:
    """The unit of ρ: D² c ≈ 1 for unrelated rows, so that the paper's 1500 at D = 128 is 0.092."""
    c = losses.Decorrelation(128).double()
    assert c(unit(4000, 128), unit(4000, 128, seed=1)).item() == pytest.approx(1.0, abs=0.1)
    assert round(1500 / 128**2, 3) == 0.092


def test_the_two_sides_pull_in_opposite_ways() -> None:
    """A step down −ρ D² c raises c by ψ alone, and lowers it by the rows alone: the reversal [DiVA Eq. 7–8]."""
    torch.manual_seed(0)
    a, b = unit(64, 8).requires_grad_(), unit(64, 8, seed=1).requires_grad_()
    c = losses.Decorrelation(8).double()
    before = c(a, b)
    (-before).backward()
    told = copy.deepcopy(c)
    with torch.no_grad():
        for p, q in zip(told.parameters(), c.parameters(), strict=True):
            p -= 0.1 * q.grad
        assert told(a, b) > before  # ψ tells one from the other better
        assert c(a - 0.1 * a.grad, b) < before  # the rows are harder to tell
        assert c(a, b - 0.1 * b.grad) < before


def test_psi_is_applied_to_the_second() -> None:
    """The formula, not the text, which maps the first to the second."""
    a, b, c = unit(5, 3), unit(5, 3, seed=1), losses.Decorrelation(3).double()
    told = nn.functional.normalize(c.psi(b), dim=1)
    assert c(a, b).item() == pytest.approx((9 * (a * told) ** 2).mean().item())


# ------------------------------------------------------------------------------------------------------ the whole


def objective(rho: float = 0.1) -> losses.Objective:
    torch.manual_seed(0)
    tasks = [losses.TripletMargin(i, k, 3) for i, k in enumerate(("disc", "shared", "intra"))] + [
        losses.Contrast(3, 6, 16)
    ]
    return losses.Objective(
        tasks, (1.0, 0.3, 0.2, 0.5), 6, dict.fromkeys(losses.decorrelated_pairs("abcd", "disc"), rho)
    ).double()


def test_the_joint_loss_is_the_sum_of_its_parts() -> None:
    whole, b = objective(), batch()
    total, parts = whole(b)
    weights = {"loss_0": 1.0, "loss_1": 0.3, "loss_2": 0.2, "loss_3": 0.5}
    want = sum(w * parts[k] for k, w in weights.items()) - 0.1 * sum(v for k, v in parts.items() if "deco" in k)
    assert total.item() == pytest.approx(want.item())
    assert len(parts) == 7


def test_a_weight_of_zero_is_not_computed() -> None:
    lazy = losses.Objective([losses.TripletMargin(0, "disc", 3), losses.Contrast(1, 6, 8)], (1.0, 0.0), 6)
    assert not lazy.momentum
    _, parts = lazy.double()(batch())
    assert list(parts) == ["loss_0"]
    with pytest.raises(InputError, match="weights"):
        losses.Objective([losses.TripletMargin(0, "disc", 3)], (1.0, 2.0), 6)


# ----------------------------------------------------------------------------------------------------------- triplets


def rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_distances_are_those_of_a_loop() -> None:
    x, y = rows(7, 5), rows(4, 5, 1)
    want = [[math.dist(a.tolist(), b.tolist()) for b in y] for a in x]
    assert torch.allclose(losses.distances(x, y), torch.tensor(want, dtype=torch.float64), atol=1e-7)


def test_equal_rows_have_a_finite_gradient() -> None:
    x = rows(3, 4)[[0, 0, 1]].requires_grad_()
    losses.distances(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dim", [3, 8, 32])
def test_the_density_is_that_of_random_rows(dim: int) -> None:
    """q(d), normalised on a grid, gives the share of random pairs below a distance."""
    grid = torch.linspace(1e-4, 2 - 1e-4, 20_001, dtype=torch.float64)
    q = losses.log_density(grid, dim).exp()
    share = (q.cumsum(0) / q.sum()).numpy()
    d = losses.distances(rows(4_000, dim), rows(4_000, dim, 1)).diagonal().numpy()
    for quantile in (0.1, 0.5, 0.9):
        at = float(np.quantile(d, quantile))
        assert np.interp(at, grid.numpy(), share) == pytest.approx(quantile, abs=0.03)


def test_weights_by_hand() -> None:
    """Three dimensions: q(d) = d, so that weights are 1/d, with 0.2 counted as 0.5, nothing beyond 1.4."""
    d = torch.tensor([[0.2, 1.0, 1.25, 1.5, 0.7]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, True, True, False]])
    want = np.array([2.0, 1.0, 0.8, 0.0, 0.0]) / 3.8
    assert losses.distance_weights(d, allowed, 3)[0].numpy() == pytest.approx(want)


def test_weights_fall_back_evenly_and_may_be_nothing() -> None:
    d = torch.tensor([[1.5, 1.6, 0.6], [1.0, 1.0, 1.0]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    assert losses.distance_weights(d, allowed, 8).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


@given(st.integers(0, 1000), st.integers(2, 200))
def test_rows_of_weights_sum_to_one(seed: int, dim: int) -> None:
    """Also in many dimensions, where q spans hundreds of orders of magnitude."""
    d = losses.distances(rows(6, min(dim, 40), seed))
    allowed = ~torch.eye(6, dtype=torch.bool)
    w = losses.distance_weights(d, allowed, dim)
    assert torch.allclose(w.sum(1), torch.ones(6, dtype=torch.float64))
    assert (w[~allowed] == 0).all()


def test_draws_follow_their_weights() -> None:
    w = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.float64).expand(20_000, 4)
    counts = torch.bincount(losses.draw(w, source()), minlength=4) / 20_000
    assert counts[1] == 0
    assert counts.tolist() == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.02)
    assert losses.draw(torch.zeros(2, 3), source()).tolist() == [-1, -1]


@given(st.integers(0, 500), st.integers(3, 6), st.integers(3, 5))
def test_kinds_of_triplets(seed: int, classes: int, each: int) -> None:
    y = torch.arange(classes).repeat_interleave(each)
    d = losses.distances(rows(len(y), 6, seed))
    a, p, n = losses.mine_discriminative(d, y, 6, source(seed))
    assert len(a) == len(y) * (each - 1)  # every ordered pair of one class
    assert (y[a] == y[p]).all()
    assert (a != p).all()
    assert (y[a] != y[n]).all()
    a, p, n = losses.mine_shared(d, y, 6, source(seed))
    assert (y[a] != y[p]).all()
    assert (y[a] != y[n]).all()
    assert (y[p] != y[n]).all()
    a, p, n = losses.mine_intra(y, source(seed))
    assert len(a) == len(y)
    assert (y[a] == y[p]).all()
    assert (y[a] == y[n]).all()
    assert (a != p).all()
    assert (a != n).all()
    assert (p != n).all()


def test_dealt_labels_make_pairs_of_all_classes() -> None:
    y = torch.arange(6).repeat_interleave(4)
    a, p, _ = losses.mine_permuted(losses.distances(rows(24, 6)), y, 6, source())
    assert (y[a] != y[p]).any()
    assert len(a) == 24 * 3


def test_two_of_a_class_make_no_intra_triplet() -> None:
    """Three distinct pictures are needed; the released code repeats one of two instead."""
    a, _, _ = losses.mine_intra(torch.tensor([0, 0, 1, 1, 1]), source())
    assert a.tolist() == [2, 3, 4]


def test_equal_seeds_equal_triplets() -> None:
    y = torch.arange(5).repeat_interleave(3)
    d = losses.distances(rows(15, 4))
    first, again, other = (losses.mine_discriminative(d, y, 4, source(s)).negative for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@given(st.integers(0, 1000))
def test_losses_are_those_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ap, an, beta = rng.uniform(0, 2, (3, 9))
    terms = [max(0.2 + p - b, 0) for p, b in zip(ap, beta, strict=True)]
    terms += [max(0.2 - n + b, 0) for n, b in zip(an, beta, strict=True)]
    active = [t for t in terms if t > 0]
    got = losses.margin(*map(torch.from_numpy, (ap, an, beta)), 0.2)
    assert got.item() == pytest.approx(sum(active) / max(len(active), 1))


def test_nothing_active_is_zero_with_a_gradient() -> None:
    d = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    loss = losses.margin(d, torch.tensor([2.0], dtype=torch.float64), torch.tensor([1.2], dtype=torch.float64), 0.2)
    loss.backward()
    assert loss.item() == 0.0
    assert d.grad.tolist() == [0.0]


def test_gradients_of_the_margin() -> None:
    y = torch.arange(4).repeat_interleave(3)
    mined = losses.mine_discriminative(losses.distances(rows(12, 5)), y, 5, source())
    beta = torch.full((4,), 1.15, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        d = losses.distances(torch.nn.functional.normalize(x, dim=1))
        return losses.margin(d[mined.anchor, mined.positive], d[mined.anchor, mined.negative], b[y[mined.anchor]], 0.2)

    assert torch.autograd.gradcheck(loss, (rows(12, 5).requires_grad_(), beta))


def test_one_dimension_is_refused() -> None:
    with pytest.raises(InputError, match="dim"):
        losses.log_density(torch.ones(1), 1)
