"""Correlation lookups: hand cases, a loop over every sample, two ways that agree, gradients, the border."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from likewise.errors import InputError, ShapeError
from likewise.pixels.raft.correlation import Correlation, pooled
from pixels import raft_oracle

AllPairs, OnDemand = (functools.partial(Correlation, kind=kind) for kind in ("all", "demand"))
WAYS = [AllPairs, OnDemand]


def maps(b: int = 1, c: int = 5, h: int = 8, w: int = 11, seed: int = 0, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, b, c, h, w, generator=g, dtype=dtype).unbind()


def guesses(b: int, h: int, w: int, spread: float = 3.0, seed: int = 1, dtype: torch.dtype = torch.float64):
    """Points around every cell's own place, some beyond the border."""
    g = torch.Generator().manual_seed(seed)
    home = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(h), indexing="xy"), dim=-1)
    return home + spread * torch.randn(b, h, w, 2, generator=g, dtype=dtype)


def value(volume: torch.Tensor, x: float, y: float) -> float:
    """Bilinear between whole places, zero outside."""
    x0, y0, total = math.floor(x), math.floor(y), 0.0
    for i, wx in ((x0, 1 - (x - x0)), (x0 + 1, x - x0)):
        for j, wy in ((y0, 1 - (y - y0)), (y0 + 1, y - y0)):
            if 0 <= i < volume.shape[1] and 0 <= j < volume.shape[0]:
                total += wx * wy * float(volume[j, i])
    return total


def naive(fa: torch.Tensor, fb: torch.Tensor, points: torch.Tensor, levels: int, radius: int) -> torch.Tensor:
    """Every sample of every window by itself; means are taken of correlations, not of features."""
    b, c, h, w = fa.shape
    side = 2 * radius + 1
    result = torch.zeros(b, levels * side * side, h, w, dtype=fa.dtype)
    for n in range(b):
        for y in range(h):
            for x in range(w):
                volume = torch.einsum("c,cij->ij", fa[n, :, y, x], fb[n]) / c**0.5
                for level in range(levels):
                    px, py = (points[n, y, x] / 2**level).tolist()
                    for slow in range(side):  # the slow index moves x: the original's transposed window
                        for fast in range(side):
                            k = (level * side + slow) * side + fast
                            result[n, k, y, x] = value(volume, px + slow - radius, py + fast - radius)
                    if level < levels - 1:
                        volume = torch.nn.functional.avg_pool2d(volume[None, None], 2)[0, 0]
    return result


@pytest.mark.parametrize("way", WAYS)
def test_the_window_is_transposed_as_in_the_original(way: Callable[..., Correlation]) -> None:
    fb = torch.zeros(1, 1, 5, 5)
    fb[0, 0, 2, 3] = 1.0  # one to the right of the centre
    result = way(torch.ones(1, 1, 1, 1), fb, levels=1, radius=1).lookup(torch.tensor([[[[2.0, 2.0]]]]))
    slow, fast = divmod(int(result.flatten().argmax()), 3)
    assert (slow, fast) == (2, 1), "the slow index of the window is x"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grad", [False, True], ids=["compiled", "differentiable"])
def test_every_sample_is_the_loop_s(way: Callable[..., Correlation], grad: bool) -> None:
    fa, fb = maps(b=2, h=4, w=5)
    fb = maps(b=2, h=9, w=13, seed=5)[1]
    points = guesses(2, 4, 5) * 2
    pairs = way(fa.requires_grad_(grad), fb, levels=3, radius=2)
    torch.testing.assert_close(pairs.lookup(points).detach(), naive(fa.detach(), fb, points, 3, 2), atol=1e-12, rtol=0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_what_grid_sample_gives(way: Callable[..., Correlation], dtype: torch.dtype) -> None:
    fa, fb = maps(b=2, c=16, h=16, w=19, dtype=dtype)
    points = guesses(2, 16, 19, dtype=dtype)
    want = raft_oracle.lookup(raft_oracle.volume(fa, fb), points.permute(0, 3, 1, 2), 3)
    result = way(fa, fb, levels=4, radius=3).lookup(points)
    assert result.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(result, want, atol=1e-5 if dtype == torch.float32 else 1e-11, rtol=0)


@given(
    st.integers(1, 3), st.integers(0, 4), st.floats(-60, 60), st.floats(-60, 60), st.integers(4, 9), st.integers(4, 9)
)
def test_both_ways_agree_wherever_the_guess_is(
    levels: int, radius: int, dx: float, dy: float, high: int, wide: int
) -> None:
    fa, fb = maps(h=high, w=wide, dtype=torch.float32)
    points = guesses(1, high, wide, 0.5, dtype=torch.float32) + torch.tensor([dx, dy])
    one, two = (way(fa, fb, levels=levels, radius=radius).lookup(points) for way in WAYS)
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    assert one.shape == (1, AllPairs(fa, fb, levels=levels, radius=radius).planes, high, wide)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grad", [False, True], ids=["compiled", "differentiable"])
@pytest.mark.parametrize("far", [1e4, -1e4, 1e30, -1e30])
def test_far_outside_there_is_nothing(way: Callable[..., Correlation], grad: bool, far: float) -> None:
    fa, fb = maps(dtype=torch.float32)
    points = torch.full((1, 8, 11, 2), far)
    result = way(fa.requires_grad_(grad), fb, levels=2, radius=2).lookup(points).detach()
    assert bool((result == 0).all())


@pytest.mark.parametrize("way", WAYS)
def test_gradients(way: Callable[..., Correlation]) -> None:
    fa, fb = maps()
    fa, fb = fa[:, :2, :2, :3].clone().requires_grad_(), fb[:, :2, :4, :5].clone().requires_grad_()
    points = guesses(1, 2, 3, 1.0).requires_grad_()

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        return way(inputs[0], inputs[1], levels=2, radius=1).lookup(inputs[2])

    assert torch.autograd.gradcheck(run, (fa, fb, points))


def test_blocks_of_the_differentiable_way_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fa, fb = maps(b=2)
    points = guesses(2, 8, 11)
    pairs = OnDemand(fa.requires_grad_(), fb, levels=2, radius=2)
    whole = pairs.lookup(points)
    monkeypatch.setattr("likewise.pixels.raft.correlation.BLOCK", 5 * 36 * 7)
    torch.testing.assert_close(pairs.lookup(points), whole, atol=1e-13, rtol=0)


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fa, fb = maps(b=1, h=40, w=50, dtype=torch.float32)
    points = guesses(1, 40, 50, dtype=torch.float32)
    for way in WAYS:
        pairs = way(fa, fb, levels=3, radius=2)
        whole = pairs.lookup(points)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("likewise.pixels.raft.correlation.SHARE", 300)
            patch.setattr("torch.get_num_threads", lambda: 3)
            assert torch.equal(pairs.lookup(points), whole)


def test_auto_takes_memory_and_gradients_into_account() -> None:
    fa, fb = maps(c=4, h=40, w=50, dtype=torch.float32)
    size = 40 * 50 * sum((40 >> k) * (50 >> k) for k in range(4)) * 4
    assert Correlation(fa, fb).demand, "on a CPU without gradients windows are computed by numba"
    held = Correlation(fa, fb)
    assert held.rows.numel() + sum(m.numel() for m in held.maps) <= fa.numel() + 1.4 * fb.numel()
    learning = fa.clone().requires_grad_()
    assert not Correlation(learning, fb, most=size).demand, "gradients are cheaper of all pairs"
    assert Correlation(learning, fb, most=size - 1).demand
    assert not Correlation(fa, fb, kind="all", most=1).demand
    assert sum(m.numel() for m in AllPairs(fa, fb).maps) * 4 == size


def test_odd_sizes_lose_their_last_row_when_pooled() -> None:
    f = torch.arange(15.0).view(1, 1, 3, 5)
    assert pooled(f, 2)[1].flatten().tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fb": torch.rand(1, 4, 8, 8)}, ShapeError, "same b and c"),
        ({"fa": torch.rand(5, 8, 8)}, ShapeError, "fa, fb: expected"),
        ({"fb": torch.rand(1, 5, 7, 20)}, ShapeError, "at least 8 × 8 cells for 4 levels"),
        ({"levels": 0}, InputError, "levels ≥ 1"),
        ({"radius": -1}, InputError, "radius ≥ 0"),
        ({"kind": "some"}, InputError, 'kind: expected "auto", "all" or "demand"'),
        ({}, ShapeError, r"points: expected \(1, 8, 8, 2\)"),
    ],
)
def test_wrong_arguments_are_named(change: dict, error: type[Exception], message: str) -> None:
    words = {"fa": torch.rand(1, 5, 8, 8), "fb": torch.rand(1, 5, 8, 8)} | change
    with pytest.raises(error, match=message):
        Correlation(**words).lookup(torch.zeros(1, 8, 7, 2))
