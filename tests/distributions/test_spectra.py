"""Singular values of Jacobians: hand cases, a naive Jacobian, properties, the ways around missing derivatives."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from likewise.distributions import spectra
from likewise.distributions.data import load
from likewise.distributions.spectra import Composite, pilot, spectrum
from likewise.errors import InputError


def matrix(values, size, seed=0):
    """A (size, len(values)) float64 matrix with these singular values."""
    r = np.random.default_rng(seed)
    U, _ = np.linalg.qr(r.normal(size=(size, len(values))))
    V, _ = np.linalg.qr(r.normal(size=(len(values), len(values))))
    return torch.tensor(U * np.asarray(values) @ V.T)


def linear(A):
    return lambda z: z @ A.T.to(z.dtype)


def network(d=12, hidden=32, D=40, seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(d, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, D))
    return net.to(dtype).requires_grad_(False)


def latents(n, d, seed=1, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive(f, z):
    """All singular values by the full Jacobian of each sample on its own, row by row in reverse mode."""
    out = []
    for one in z:
        J = torch.autograd.functional.jacobian(lambda x: f(x[None]).flatten(), one)
        out.append(np.linalg.svd(J.numpy().astype(np.float64), compute_uv=False))
    return np.stack(out)


# ── hand cases ────────────────────────────────────────────────────────────────────────────────────────────────────

DECAY = [2.0 * 0.3**i for i in range(40)]


@pytest.mark.parametrize("method", ["auto", "gram", "fd", "subspace", "left"])
def test_a_linear_map_has_its_singular_values(method):
    f, z = linear(matrix(DECAY, 60)), latents(3, 40)
    result = spectrum(f, z, 5, method=method)
    np.testing.assert_allclose(result.values, [DECAY[:5]] * 3, rtol=1e-6)
    np.testing.assert_array_equal(result.rank, [5, 5, 5])
    np.testing.assert_allclose(result.log_volume, np.log(DECAY[:5]).sum(), rtol=1e-6)
    assert result.method == ("gram" if method == "auto" else method)


def test_the_paper_s_sketch_is_scaled_to_estimate_the_values():
    f, z = linear(matrix([3.0] * 4, 4000)), latents(2, 4)
    result = spectrum(f, z, 4, method="sketch", rows=400)
    assert result.method == "sketch"
    np.testing.assert_allclose(result.values, 3.0, rtol=0.2)
    np.testing.assert_allclose(spectrum(f, z, 4, method="sketch", rows=4000).values, 3.0, rtol=1e-12)


# ── the naive Jacobian ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("d", "D"), [(12, 40), (12, 5), (12, 12), (1, 7)])
def test_exact_is_the_naive_jacobian_whichever_side_is_smaller(d, D):
    f, z = network(d, D=D), latents(5, d)
    k = min(d, D)
    result = spectrum(f, z, k, method="gram")
    np.testing.assert_allclose(result.values, naive(f, z), rtol=1e-9)
    assert result.cost <= min(d, D) + 1


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_the_chunk_does_not_change_the_values(chunk):
    f, z = network(D=5), latents(11, 12)
    for method in ("gram", "fd"):
        for function in (f, network()):
            whole = spectrum(function, z, 5, method=method)
            parts = spectrum(function, z, 5, method=method, chunk=chunk)
            np.testing.assert_allclose(parts.values, whole.values, rtol=1e-6 if method == "fd" else 1e-10)


@pytest.mark.parametrize("method", ["gram", "left", "subspace", "sketch", "fd"])
def test_the_same_call_gives_the_same_bytes_and_leaves_the_global_seed_alone(method):
    f, z = network(40, D=60, dtype=torch.float32), latents(9, 40, dtype=torch.float32)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    result = [spectrum(f, z, 4, method=method, chunk=4, rows=30).values.tobytes() for _ in range(2)]
    assert result[0] == result[1]
    assert torch.equal(before, torch.get_rng_state())


def test_a_sample_does_not_hear_of_the_others():
    f, z = network(30, D=90, dtype=torch.float32), latents(8, 30, dtype=torch.float32)
    whole = spectrum(f, z, 30, chunk=30)
    for i in range(8):
        assert spectrum(f, z[i : i + 1], 30, chunk=30).values.tobytes() == whole.values[i : i + 1].tobytes()


# ── sketches ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_left_is_close_from_below_and_power_steps_are_closer():
    f, z = linear(matrix([0.8**i for i in range(60)], 300)), latents(3, 60)
    truth = 0.8 ** np.arange(10)
    errors = []
    for method, power in (("left", 0), ("subspace", 1), ("subspace", 3)):
        result = spectrum(f, z, 10, method=method, power=power)
        assert result.method == method
        assert (result.values <= truth * (1 + 1e-9)).all()
        errors.append(float((np.log(truth).sum() - result.log_volume).max()))
    assert errors[0] < 0.5
    assert errors[1] < errors[0] / 3
    assert errors[2] < errors[1] / 3


def test_left_by_hand_is_its_formula():
    A = matrix([0.7**i for i in range(50)], 120)
    z = latents(2, 50)
    Omega = torch.randn(6 + 18, 120, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    Q = torch.linalg.svd((Omega @ A).T, full_matrices=False)[0][:, :10]
    result = spectrum(linear(A), z, 6, method="left", seed=5)
    np.testing.assert_allclose(result.values[0], torch.linalg.svdvals(A @ Q)[:6].numpy(), rtol=1e-9)
    assert result.cost == 24 + 10 + 2


def test_directions_of_a_pilot_serve_other_latents():
    f, z = linear(matrix([0.8**i for i in range(60)], 300)), latents(3, 60)
    basis = pilot(f, latents(4, 60, seed=9), 14)
    assert basis.shape == (60, 14)
    np.testing.assert_allclose((basis.T @ basis).numpy(), np.eye(14), atol=1e-10)
    result = spectrum(f, z, 10, method="left", basis=basis)
    np.testing.assert_allclose(result.values, [0.8 ** np.arange(10)] * 3, rtol=1e-7)
    assert result.cost == 2 * 14 + 2
    better = spectrum(f, z, 10, method="subspace", basis=rotation(60, 0)[:, :14])
    worse = spectrum(f, z, 10, method="left", basis=rotation(60, 0)[:, :14])
    assert np.abs(better.values - 0.8 ** np.arange(10)).max() < 0.3 * np.abs(worse.values - 0.8 ** np.arange(10)).max()


def test_auto_is_exact_for_small_latents_and_left_for_large_ones():
    assert spectrum(network(40, D=300), latents(1, 40), 10).method == "gram"
    assert spectrum(network(200, D=300), latents(1, 200), 10).method == "left"
    assert spectrum(network(200, D=20), latents(1, 200), 10).method == "gram"
    f, z = network(20, D=50), latents(3, 20)
    result = spectrum(f, z, 15, method="left")  # it would cost more than everything
    assert result.method == "gram"
    np.testing.assert_allclose(result.values, naive(f, z)[:, :15], rtol=1e-9, atol=1e-14)


# ── composites ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_composite_is_measured_through_its_inner_part():
    inner = linear(matrix([0.7**i for i in range(60)], 70))
    f, z = Composite(inner, network(70, 80, 90)), latents(4, 60)
    exact = spectrum(f, z, 8, method="gram")
    result = spectrum(f, z, 8)
    assert result.method == "through"
    np.testing.assert_allclose(result.values, exact.values, rtol=1e-6)
    assert result.cost < 40 < exact.cost
    np.testing.assert_allclose(spectrum(f, z, 8, tail=0.0).values, exact.values, rtol=1e-9)
    rough = spectrum(f, z, 8, tail=0.5)
    assert rough.cost <= result.cost
    assert (rough.values <= exact.values * (1 + 1e-9)).all()


def test_a_composite_whose_inner_part_has_lost_directions():
    f, z = Composite(linear(matrix([1.0, 0.5, 0.2, 0, 0, 0, 0, 0], 9)), network(9, D=30)), latents(3, 8)
    result = spectrum(f, z, 6)
    np.testing.assert_array_equal(result.rank, 3)
    np.testing.assert_allclose(result.values[:, :3], naive(f, z)[:, :3], rtol=1e-8)
    np.testing.assert_array_equal(result.values[:, 3:], 0)
    assert np.isneginf(result.log_volume).all()


# ── properties ────────────────────────────────────────────────────────────────────────────────────────────────────


def rotation(d, seed):
    return torch.tensor(np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0])


@given(st.integers(0, 10_000), st.integers(1, 8))
@settings(max_examples=25)
def test_rotations_on_either_side_change_nothing(seed, k):
    f, z = network(8, 16, 20, seed), latents(3, 8, seed)
    R, S = rotation(20, seed), rotation(8, seed + 1)
    plain = spectrum(f, z, k)
    np.testing.assert_allclose(spectrum(lambda x: f(x) @ R.T, z, k).values, plain.values, rtol=1e-7, atol=1e-12)
    turned = spectrum(lambda x: f(x @ S.T), z @ S, k)
    np.testing.assert_allclose(turned.values, plain.values, rtol=1e-7, atol=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(-20, 20))
@settings(max_examples=25)
def test_scaling_shifts_the_log_volume_by_k_log_c(seed, k, power):
    f, z, c = network(8, 16, 20, seed), latents(3, 8, seed), 10.0**power
    plain, scaled = spectrum(f, z, k), spectrum(lambda x: c * f(x), z, k)
    np.testing.assert_allclose(scaled.log_volume, plain.log_volume + k * math.log(c), atol=1e-6)


@given(st.integers(0, 10_000))
@settings(max_examples=25)
def test_values_descend_and_fewer_are_the_first_of_more(seed):
    f, z = network(8, 16, 20, seed), latents(3, 8, seed)
    all_of_them = spectrum(f, z, 8)
    assert (np.diff(all_of_them.values, axis=1) <= 0).all()
    np.testing.assert_allclose(spectrum(f, z, 3).values, all_of_them.values[:, :3], rtol=1e-12)


# ── rank and rounding ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", ["gram", "fd"])
def test_directions_that_are_lost_are_not_counted(dtype, method):
    f, z = linear(matrix([1, 0.5, 0.25, 0, 0], 30)), latents(4, 5, dtype=dtype)
    result = spectrum(f, z, 5, method=method)
    np.testing.assert_array_equal(result.rank, 3)
    np.testing.assert_array_equal(result.values[:, 3:], 0)
    assert np.isneginf(result.log_volume).all()
    assert np.isfinite(spectrum(f, z, 3, method=method).log_volume).all()


@pytest.mark.parametrize(
    ("values", "size", "dtype"),
    [([1.0, 1e-2, 1e-3, 1e-4], 20_000, torch.float32), ([1.0, 1e-5, 1e-9, 1e-12], 30, torch.float64)],
)
def test_small_values_of_wide_outputs_and_wide_spectra_are_kept(values, size, dtype):
    result = spectrum(linear(matrix(values, size)), latents(2, 4, dtype=dtype), 4)
    np.testing.assert_array_equal(result.rank, 4)
    np.testing.assert_allclose(result.values, [values] * 2, rtol=1e-3)


def test_a_constant_has_rank_zero():
    result = spectrum(lambda z: torch.ones(len(z), 3, dtype=z.dtype), latents(2, 4), 2)
    assert result.method == "fd"
    np.testing.assert_array_equal(result.values, 0)
    np.testing.assert_array_equal(result.rank, 0)


# ── ways around missing derivatives ───────────────────────────────────────────────────────────────────────────────


class Cube(torch.autograd.Function):
    """x³ with a backward pass and nothing else."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Once(Cube):
    """x³ whose backward pass cannot be differentiated."""

    backward = staticmethod(torch.autograd.function.once_differentiable(Cube.backward))


class Forward(torch.autograd.Function):
    """x³ with a forward mode, but none that vmap knows, and no backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x**3

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * t


@pytest.mark.parametrize(
    ("function", "method", "rtol"),
    [
        (lambda z: z**3, "gram", 1e-12),
        (Cube.apply, "gram (double-VJP)", 1e-12),
        (Once.apply, "fd", 1e-6),
        (Forward.apply, "gram (repeated rows)", 1e-12),
        (lambda z: np.asarray(z) ** 3, "fd", 1e-6),
        (lambda z: torch.from_numpy(z.detach().numpy() ** 3), "fd", 1e-6),
    ],
    ids=["all", "no forward mode", "one backward", "no vmap", "numpy", "detached"],
)
def test_what_is_missing_is_noticed_and_said(function, method, rtol):
    z = torch.tensor([[1.0, 2.0, -0.5], [0.3, -1.5, 0.8]], dtype=torch.float64)
    result = spectrum(function, z, 3)
    assert result.method == method
    np.testing.assert_allclose(result.values, np.sort(3 * z.numpy() ** 2)[:, ::-1], rtol=rtol)


def test_no_grad_inside_does_not_hide_the_jacobian():
    net = network()

    def frozen(z):
        with torch.no_grad():
            return net(z)

    result = spectrum(frozen, latents(2, 12), 3)
    np.testing.assert_allclose(result.values, naive(net, latents(2, 12))[:, :3], rtol=1e-6)


def test_left_without_forward_mode():
    A = matrix([0.5**i for i in range(60)], 90)
    result = spectrum(lambda z: Cube.apply(z @ A.T + 1), latents(2, 60), 4, method="left")
    assert result.method == "left (double-VJP)"
    exact = spectrum(lambda z: (z @ A.T + 1) ** 3, latents(2, 60), 4, method="gram")
    np.testing.assert_allclose(result.values, exact.values, rtol=1e-3)
    assert spectrum(Forward.apply, latents(2, 60), 4, method="left").method == "gram (repeated rows)"  # no VJP at all


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": 13}, r"k: expected a whole number from 1 to 12, the latent size, got 13"),
        ({"k": 0}, r"k: expected a whole number from 1 to 12.*got 0"),
        ({"k": True}, r"k: expected a whole number"),
        ({"k": 2.0}, r"k: expected a whole number"),
        ({"k": 6, "f": network(D=5)}, "k: expected at most the 5 numbers"),
        ({"method": "svd"}, r"method: expected one of auto, gram, .*got 'svd'"),
        ({"method": "through"}, r"f: method 'through' needs a Composite"),
        ({"chunk": 0}, r"chunk: expected a whole number ≥ 1"),
        ({"seed": -1}, r"seed: expected a whole number ≥ 0"),
        ({"power": -1}, r"power"),
        ({"tail": 1.0}, r"tail"),
        ({"method": "sketch", "rows": 2}, r"rows: expected at least k = 3"),
        ({"method": "left", "basis": np.ones((12, 2))}, r"basis: expected \(12, r\) with r ≥ k = 3"),
        ({"z": torch.zeros(12)}, "shape"),
        ({"z": torch.zeros(0, 12)}, "shape"),
        ({"z": torch.zeros(2, 3, 4)}, "shape"),
        ({"z": torch.zeros(2, 12, dtype=torch.int64)}, "float32 or float64"),
        ({"z": torch.full((2, 12), math.nan)}, "NaN"),
        ({"z": "latents"}, "z: expected latents"),
        ({"f": lambda z: z.sum()}, "expected \\(2, …\\), one output a latent"),
        ({"f": lambda z: z.sum(1)}, "one output a latent"),
        ({"f": lambda z: z[:1]}, "one output a latent"),
        ({"f": lambda z: (z * 100).to(torch.uint8)}, "float32 or float64, got torch.uint8"),
        ({"f": lambda z: z - z.mean(0)}, "rows must be independent"),
        ({"f": lambda z: z + torch.rand_like(z)}, "deterministic"),
    ],
)
def test_a_wrong_argument_is_named(changed, message):
    with pytest.raises(InputError, match=message):
        spectrum(**{"f": network(), "z": latents(2, 12), "k": 3, **changed})


@pytest.mark.parametrize("method", ["gram", "fd", "left", "sketch"])
@pytest.mark.parametrize("row", [0, 1, 10])
def test_a_row_that_is_not_finite_is_numbered(method, row):
    z = latents(12, 60)
    z[row, 0] = 50.0
    f = network(60, D=80)
    with pytest.raises(InputError, match=rf"f: output of row {row} is NaN or infinite"):
        spectrum(lambda x: f(x) + torch.where(x[:, :1] > 40, math.nan, 0.0), z, 2, method=method, chunk=5, rows=40)


def test_a_jacobian_that_is_not_finite_is_numbered():
    z = torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"f: Jacobian of row 1 is NaN or infinite"):
        spectrum(torch.sqrt, z, 1)


# ── a real generator ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_digits_generator_against_its_float64_jacobian(data):
    net = load(data / "generators" / "dcgan_mnist_z64.pth", strides=[2, 1, 2, 2], slope=0.0).net
    z = latents(12, 64, dtype=torch.float32)
    wide = copy.deepcopy(net).double()
    J = torch.func.vmap(torch.func.jacfwd(lambda x: wide(x[None]).flatten()))(z[:2].double())
    truth = np.log(np.linalg.svd(J.numpy(), compute_uv=False))
    result = spectrum(net, z[:2], 64)
    assert result.method == "gram"
    for k, most in ((10, 1e-5), (64, 1e-4)):
        assert np.abs(result.log_values[:, :k].sum(1) - truth[:, :k].sum(1)).max() < most
    exact, fast, paper = (spectrum(net, z, 10, method=m) for m in ("gram", "left", "sketch"))
    spread = exact.log_volume.std()
    assert (fast.log_volume - exact.log_volume).std() < 0.04 * spread
    assert (fast.log_volume - exact.log_volume).std() < (paper.log_volume - exact.log_volume).std()
    assert fast.cost < exact.cost < paper.cost


# ------------------------------------------------------------------------------------------------ what auto chooses


class Decaying:
    """A map of 100 latents whose singular values fall by `rate` each, a little different in each place."""

    def __init__(self, rate: float) -> None:
        draw = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(120, 100, generator=draw))[0]
        self.matrix = (basis * rate ** torch.arange(100.0)).T
        self.calls = 0

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (z + 0.3 * z.sin()) @ self.matrix


@pytest.mark.parametrize(
    ("rate", "seconds", "wanted"),
    [
        (0.5, {"gram": 3, "left": 1, "subspace": 2}, "left"),
        (1.0, {"gram": 3, "left": 1, "subspace": 2}, "gram"),  # a flat spectrum: no sketch is accurate
        (0.5, {"gram": 1, "left": 3, "subspace": 4}, "gram"),  # accurate, but slower
    ],
)
def test_auto_takes_the_fastest_that_is_accurate(
    rate: float, seconds: dict[str, float], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that the test sets: what the methods took, in the order in which they are tried."""
    f, z = Decaying(rate), torch.randn(64, 100, generator=torch.Generator().manual_seed(1))
    ticks = iter([t for name in ("gram", "left", "subspace") for t in (0.0, float(seconds[name]))])
    monkeypatch.setattr(spectra, "_clock", lambda _: next(ticks))
    measured = spectrum(f, z, 3)
    assert measured.method == wanted
    again = f.calls
    assert spectrum(f, z, 3).method == wanted  # tried once: the clock has no more ticks
    assert f.calls - again < again
    exact = spectrum(f, z, 3, method="gram").log_volume
    assert (measured.log_volume - exact).std() <= 0.05 * exact.std()
    assert spectrum(f, z[:10], 3).method == "gram"  # of a few the rule decides


def test_auto_of_a_black_box_is_not_tried() -> None:
    def box(z: torch.Tensor) -> np.ndarray:
        return np.tanh(z.numpy()) ** 2

    assert spectrum(box, torch.randn(70, 4), 2).method == "fd"
