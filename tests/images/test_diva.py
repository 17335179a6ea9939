"""DiVA equation by equation: naive loops, hand cases, the errata, and the sign of the decorrelation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from likewise.errors import InputError
from likewise.images import diva, triplets


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return nn.functional.normalize(torch.randn(*shape, generator=g, dtype=torch.float64), dim=-1)


def batch(n: int = 12, heads: int = 4, dim: int = 6, *, each: int = 4, seed: int = 0, step: int = 0) -> diva.Batch:
    z = unit(n, heads, dim, seed=seed)
    y = torch.arange(n // each).repeat_interleave(each)
    return diva.Batch(z, y, torch.arange(n), moved=unit(n, heads, dim, seed=seed + 1), step=step, seed=seed)


@pytest.mark.parametrize("kind", ["disc", "shared", "intra"])
def test_a_ranked_task_is_the_loop_over_its_triplets(kind: str) -> None:
    b = batch()
    task = diva.Ranked(1, kind, 3).double()
    with torch.no_grad():
        task.beta.copy_(torch.tensor([1.0, 1.2, 1.4]))
    z = b.z[:, 1]
    mined = task.mine(triplets.distances(z), b.y, 6, b.generator(1))
    terms = []
    for a, p, n in zip(*mined, strict=True):
        beta = task.beta[b.y[a]].item()
        terms.append(max(0.2 + math.dist(z[a].tolist(), z[p].tolist()) - beta, 0))
        terms.append(max(0.2 - math.dist(z[a].tolist(), z[n].tolist()) + beta, 0))
    active = [t for t in terms if t > 0]
    assert task(b).item() == pytest.approx(sum(active) / len(active), rel=1e-6)


def test_boundaries_are_learned() -> None:
    """The text has them fixed; the released code, like this, learns one for each class."""
    task = diva.Ranked(0, "disc", 3, beta=0.9).double()  # more pairs too far than too near: the boundary must rise
    task(batch()).backward()
    assert task.beta.grad is not None
    assert task.beta.grad.sum() < 0


def filled(task: diva.Contrast, rows: torch.Tensor, ids: torch.Tensor) -> diva.Contrast:
    task.double().queue.push(rows, ids)
    return task


def loop_of_dance(task: diva.Contrast, b: diva.Batch, *, weighted: bool, scale: str) -> float:
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
        diva.Contrast(3, 6, 16, tau=0.2, weighted=weighted, scale=scale), unit(10, 6, seed=5), torch.arange(10)
    )
    assert task(b).item() == pytest.approx(loop_of_dance(task, b, weighted=weighted, scale=scale), rel=1e-6)


def test_the_positive_is_in_the_denominator() -> None:
    """The loss cannot be negative; without the positive it would be, here."""
    b = batch(4, each=2)
    b = diva.Batch(b.z, b.y, b.ids, moved=b.z.clone())
    task = filled(diva.Contrast(0, 6, 8, tau=0.1), -b.z[:, 0], torch.arange(100, 104))
    assert task(b).item() >= 0.0


def test_even_weights_by_count_are_the_usual_noise_contrast() -> None:
    b = batch()
    negatives = unit(10, 6, seed=5)
    task = filled(diva.Contrast(0, 6, 10, tau=0.3, weighted=False, scale="count"), negatives, torch.arange(50, 60))
    z, p = b.z[:, 0], b.moved[:, 0]
    logits = torch.cat([(z * p).sum(1, keepdim=True), z @ negatives.T], 1) / 0.3
    want = nn.functional.cross_entropy(logits, torch.zeros(12, dtype=torch.int64))
    assert task(b).item() == pytest.approx(want.item(), rel=1e-6)


def test_weights_sum_to_one_in_each_row() -> None:
    """λ is never given; here a row sums to 1. (The released code normalises columns, over the batch.)"""
    task = filled(diva.Contrast(0, 6, 16), unit(9, 6, seed=5), torch.arange(9))
    allowed = (task.queue.ids >= 0)[None].expand(4, -1)
    assert task.weights(unit(4, 6), allowed).sum(1).tolist() == pytest.approx([1.0] * 4)


def test_a_picture_is_not_its_own_negative() -> None:
    b = batch(4, each=2)
    alone = filled(diva.Contrast(0, 6, 4, tau=0.1), b.z[:, 0].clone(), b.ids)
    others = diva.Batch(b.z, b.y, b.ids + 100, moved=b.moved)
    assert alone(b).item() < alone(others).item()  # with other numbers the same rows count as negatives


def test_a_small_temperature_is_zero_at_once() -> None:
    """τ = 0.01 of the paper: the loss of a picture that is nearer to its other view than to any other vanishes."""
    z = unit(8, 1, 16)
    b = diva.Batch(
        z, torch.arange(8), torch.arange(8), moved=nn.functional.normalize(z + 0.1 * unit(8, 1, 16, seed=3), dim=2)
    )
    small = filled(diva.Contrast(0, 16, 8, tau=0.01), unit(8, 16, seed=4), torch.arange(20, 28))
    usable = filled(diva.Contrast(0, 16, 8, tau=0.1), unit(8, 16, seed=4), torch.arange(20, 28))
    assert small(b).item() < 1e-6 < usable(b).item()


def test_an_empty_queue_costs_nothing() -> None:
    b = batch()
    z = b.z.clone().requires_grad_()
    loss = diva.Contrast(0, 6, 8).double()(diva.Batch(z, b.y, b.ids, moved=b.moved))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert z.grad.abs().max() < 1e-12  # and a number, not NaN


def test_no_gradient_through_the_momentum_network() -> None:
    b = batch()
    moved = b.moved.clone().requires_grad_()
    task = filled(diva.Contrast(0, 6, 8), unit(8, 6, seed=5), torch.arange(50, 58))
    z = b.z.clone().requires_grad_()
    task(diva.Batch(z, b.y, b.ids, moved=moved)).backward()
    assert moved.grad is None
    assert z.grad.abs().sum() > 0
    with pytest.raises(InputError, match="second view"):
        task(diva.Batch(z, b.y, b.ids))


@given(st.lists(st.integers(1, 7), min_size=1, max_size=8))
def test_a_queue_holds_the_last_rows(pushes: list[int]) -> None:
    queue, said = diva.Queue(10, 2), []
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
    c = diva.Decorrelation(2)
    with torch.no_grad():
        for p in c.parameters():
            p.zero_()
        c.psi[2].bias.copy_(torch.tensor([3.0, 4.0]))
    assert c(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item() == pytest.approx(0.72)


def test_unrelated_rows_are_about_one() -> None:
    """The unit of ρ: D² c ≈ 1 for unrelated rows, so that the paper's 1500 at D = 128 is 0.092."""
    c = diva.Decorrelation(128).double()
    assert c(unit(4000, 128), unit(4000, 128, seed=1)).item() == pytest.approx(1.0, abs=0.1)
    assert round(1500 / 128**2, 3) == 0.092


def test_the_two_sides_pull_in_opposite_ways() -> None:
    """A step down −ρ D² c raises c by ψ alone, and lowers it by the rows alone: the reversal [DiVA Eq. 7–8]."""
    torch.manual_seed(0)
    a, b = unit(64, 8).requires_grad_(), unit(64, 8, seed=1).requires_grad_()
    c = diva.Decorrelation(8).double()
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
    a, b, c = unit(5, 3), unit(5, 3, seed=1), diva.Decorrelation(3).double()
    told = nn.functional.normalize(c.psi(b), dim=1)
    assert c(a, b).item() == pytest.approx((9 * (a * told) ** 2).mean().item())


def test_pairs() -> None:
    tasks = ("disc", "shared", "intra", "dance")
    assert diva.pairs(tasks, "disc") == [(0, 1), (0, 2), (0, 3)]
    assert len(diva.pairs(tasks, "all")) == 6
    assert diva.pairs(tasks, "none") == []


# ------------------------------------------------------------------------------------------------------ the whole


def objective(rho: float = 0.1) -> diva.Objective:
    torch.manual_seed(0)
    tasks = [diva.Ranked(i, k, 3) for i, k in enumerate(("disc", "shared", "intra"))] + [diva.Contrast(3, 6, 16)]
    return diva.Objective(tasks, (1.0, 0.3, 0.2, 0.5), 6, dict.fromkeys(diva.pairs("abcd", "disc"), rho)).double()


def test_the_joint_loss_is_the_sum_of_its_parts() -> None:
    whole, b = objective(), batch()
    total, parts = whole(b)
    weights = {"loss_0": 1.0, "loss_1": 0.3, "loss_2": 0.2, "loss_3": 0.5}
    want = sum(w * parts[k] for k, w in weights.items()) - 0.1 * sum(v for k, v in parts.items() if "deco" in k)
    assert total.item() == pytest.approx(want.item())
    assert len(parts) == 7


def test_a_weight_of_zero_is_not_computed() -> None:
    lazy = diva.Objective([diva.Ranked(0, "disc", 3), diva.Contrast(1, 6, 8)], (1.0, 0.0), 6)
    assert not lazy.momentum
    _, parts = lazy.double()(batch())
    assert list(parts) == ["loss_0"]
    with pytest.raises(InputError, match="weights"):
        diva.Objective([diva.Ranked(0, "disc", 3)], (1.0, 2.0), 6)


@settings(max_examples=20)
@given(st.integers(0, 100), st.integers(0, 50))
def test_a_step_is_a_function_of_seed_and_step(seed: int, step: int) -> None:
    whole, b = objective(), batch(seed=seed, step=step)
    assert whole(b)[0].item() == whole(b)[0].item()


def test_momentum_takes_statistics_along() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    slow = copy.deepcopy(net)
    net(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 5 + 3)
    with torch.no_grad():
        net[0].weight.add_(1.0)
    before = copy.deepcopy(slow.state_dict())
    diva.follow(slow, net, 0.9)
    for key, value in slow.state_dict().items():
        now = net.state_dict()[key]
        want = 0.9 * before[key] + 0.1 * now if value.is_floating_point() else now
        assert torch.allclose(value, want), key


def test_instance_discrimination_contrasts_with_all_other_pictures() -> None:
    b = batch()
    task = diva.Instance(2, 6, 20, tau=0.5).double()
    task(b)
    task.after(b)
    later = diva.Batch(unit(12, 4, 6, seed=9), b.y, b.ids)
    z, bank = later.z[:, 2], b.z[:, 2]
    logits = z @ bank.T / 0.5
    want = nn.functional.cross_entropy(logits, torch.arange(12))
    assert task(later).item() == pytest.approx(want.item(), rel=1e-6)


def test_rotation_is_told_from_rows() -> None:
    task = diva.Rotation(0, 6).double()
    b = batch()
    turned = diva.Batch(b.z, b.y, b.ids, turned=unit(8, 4, 6, seed=2))
    want = nn.functional.cross_entropy(
        task.classifier(turned.turned[:, 0]) * diva.SHARPNESS, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    )
    assert task(turned).item() == pytest.approx(want.item())
    with pytest.raises(InputError, match="turned"):
        task(b)


def test_clusters_are_found_and_told() -> None:
    rows = torch.tensor([[1.0, 0.0]] * 4 + [[0.0, 1.0]] * 4, dtype=torch.float64)[:, None, :]
    b = diva.Batch(rows, torch.arange(8), torch.arange(8), step=4)
    task = diva.Cluster(0, 2, 8, 2, every=5).double()
    assert task(b).item() == 0.0  # nothing is known yet
    task.after(b)
    found = task.assigned.tolist()
    assert len({*found[:4]}) == len({*found[4:]}) == 1
    assert found[0] != found[4]
    assert task(b).item() == pytest.approx(math.log(2))  # a classifier that knows nothing
