"""Perceptual path length: paths by hand, generators whose path length is known, steps of both sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from likewise.distributions.latents import Normal, Uniform
from likewise.distributions.model import Generator
from likewise.distributions.paths import LONG, STEP, lerp, path_length, slerp
from likewise.errors import InputError, ShapeError


def squared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """‖x − y‖² in float64."""
    return ((x.double() - y.double()) ** 2).flatten(1).sum(1)


def linear(d: int = 4, out: int = 9, seed: int = 0) -> tuple[np.ndarray, object]:
    A = np.random.default_rng(seed).normal(size=(out, d))
    M = torch.as_tensor(A)
    return A, lambda z: z.double() @ M.T


def test_slerp_by_hand() -> None:
    a, b = np.array([[1.0, 0.0]]), np.array([[0.0, 3.0]])
    np.testing.assert_allclose(slerp(a, b, [0.0]), a)
    np.testing.assert_allclose(slerp(a, b, [1.0]), b, atol=1e-15)
    np.testing.assert_allclose(slerp(a, b, [0.5]), [[np.sqrt(2), np.sqrt(2)]])
    np.testing.assert_allclose(lerp(a, b, [0.25]), [[0.75, 0.75]])


@given(st.integers(2, 6), st.integers(0, 200), st.floats(0, 1))
def test_slerp_keeps_length_and_walks_at_constant_speed(d: int, seed: int, t: float) -> None:
    r = np.random.default_rng(seed)
    a, b = (v / np.linalg.norm(v) for v in r.normal(size=(2, d)))
    p = slerp(a[None], b[None], [t])[0]
    assert np.linalg.norm(p) == pytest.approx(1.0)
    whole = np.arccos(np.clip(a @ b, -1, 1))
    assert np.arccos(np.clip(a @ p, -1, 1)) == pytest.approx(t * whole, abs=1e-6)


def test_slerp_of_near_and_of_opposite_latents() -> None:
    a = np.array([[1.0, 2.0]])
    np.testing.assert_allclose(slerp(a, a * 2, [0.5]), a * 1.5)
    with pytest.raises(InputError, match="opposite"):
        slerp(a, -a, [0.5])
    with pytest.raises(InputError, match="no direction"):
        slerp(np.zeros((1, 2)), a, [0.5])


@pytest.mark.parametrize("kind", ["full", "end"])
@pytest.mark.parametrize("step", [STEP, LONG])
def test_a_linear_generator_on_straight_paths_has_the_length_of_its_ends(kind: str, step: float) -> None:
    """d / ε² = ‖A (b − a)‖² whatever t and ε."""
    A, net = linear()
    ends = np.random.default_rng(1).normal(size=(40, 4)).astype(np.float32)
    found = path_length(net, latents=ends, path="lerp", kind=kind, step=step, distance=squared)
    expected = (((ends[20:] - ends[:20]).astype(np.float64) @ A.T) ** 2).sum(1)
    np.testing.assert_allclose(found.distances, expected, rtol=2e-2 if step == STEP else 1e-5)
    assert float(found) == pytest.approx(expected.mean(), rel=1e-2)
    assert found.value.n_fake == 20
    assert found.value.error == pytest.approx(found.distances.std(ddof=1) / np.sqrt(20))


def test_a_great_circle_of_the_identity_has_the_squared_angle_times_length() -> None:
    """‖p(t + ε) − p(t)‖² / ε² → θ² on the unit circle; a long chord is 4 sin²(θ ε / 2) / ε²."""
    ends = np.array([[1.0, 0.0], [0.0, 1.0]])
    net = lambda z: z  # noqa: E731
    short = path_length(net, latents=ends, path="slerp", distance=squared)
    assert float(short) == pytest.approx((np.pi / 2) ** 2, rel=1e-2)
    long = path_length(net, latents=ends, path="slerp", distance=squared, step=LONG)
    assert float(long) == pytest.approx(4 * np.sin(np.pi / 4 * LONG) ** 2 / LONG**2, rel=1e-5)


def test_end_and_full_differ_where_the_speed_changes() -> None:
    """x = z²: at the start of 1 → 2 the speed is 2, later more."""
    net = lambda z: z.double() ** 2  # noqa: E731
    ends = np.concatenate([np.full((200, 1), 1.0), np.full((200, 1), 2.0)])
    end = path_length(net, latents=ends, path="lerp", kind="end", distance=squared, step=1e-3)
    full = path_length(net, latents=ends, path="lerp", kind="full", distance=squared, step=1e-3)
    assert float(end) == pytest.approx(4, rel=1e-2)
    assert float(full) == pytest.approx(4 * 7 / 3, rel=0.1)  # ∫ (2 (1 + t))² dt
    with pytest.raises(InputError, match="differ in measure"):
        _ = end.value < full.value


def test_latents_are_drawn_of_the_density_and_decide_the_path() -> None:
    seen: list[np.ndarray] = []

    def net(z: torch.Tensor) -> torch.Tensor:
        seen.append(z.numpy().copy())
        return z

    normal = Generator(net, Normal(3))
    first, again = (float(path_length(normal, 8, distance=squared, seed=5)) for _ in range(2))
    assert first == again
    assert first != float(path_length(normal, 8, distance=squared, seed=6))
    seen.clear()
    path_length(Generator(net, Uniform(3)), 8, distance=squared, kind="end", step=0.5)
    assert np.abs(np.concatenate(seen)).max() <= 1
    rng = np.random.default_rng(0)
    z = Uniform(3).sample(16, rng).astype(np.float64)
    np.testing.assert_allclose(seen[1], (z[:8] + z[8:]) / 2, atol=1e-6)


def test_paths_in_style_are_straight_lines_after_the_mapping() -> None:
    mapping = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh()).requires_grad_(False)
    ends = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    found = path_length(lambda w: w, latents=ends, mapping=mapping, distance=squared, step=0.3)
    w = mapping(torch.as_tensor(ends)).double().numpy()
    np.testing.assert_allclose(found.distances, ((w[10:] - w[:10]) ** 2).sum(1), rtol=1e-4)


def test_conditional_generators_keep_their_class_along_a_path() -> None:
    seen = []

    def net(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(y.clone())
        return z * (1 + y[:, None])

    found = path_length(Generator(net, Normal(2), labels=4), 10, distance=squared)
    assert torch.equal(seen[0], seen[1])
    assert len(set(seen[0].tolist())) > 1
    one = path_length(Generator(net, Normal(2), labels=4), 10, labels=3, distance=squared)
    assert set(seen[-1].tolist()) == {3}
    assert found.value.n_fake == one.value.n_fake == 10


def test_the_distance_may_be_that_of_a_net() -> None:
    net = torch.nn.Linear(4, 2, bias=False).double().requires_grad_(False)
    ends = np.random.default_rng(0).normal(size=(6, 4))
    found = path_length(lambda z: z.double(), latents=ends, path="lerp", features=net, step=0.3)
    expected = (((ends[3:] - ends[:3]) @ net.weight.numpy().T) ** 2).sum(1)
    np.testing.assert_allclose(found.distances, expected, rtol=1e-4)
    assert found.value.net.startswith("Linear-")


def test_an_embedder_of_8_bits_is_refused_for_small_steps_and_the_default_net_is_smooth() -> None:
    import likewise as lw

    ramp = torch.linspace(0, 1, 16)
    base = torch.stack([ramp[None, :] * torch.ones(16, 1), ramp[:, None] * torch.ones(1, 16)])

    def net(z: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(torch.einsum("nd,dhw->nhw", z, base))[:, None]

    ends = np.random.default_rng(0).normal(size=(4, 2))
    with pytest.raises(InputError, match="8 bits"):
        path_length(net, latents=ends, features=lw.images.default())
    short, less = (path_length(net, latents=ends, path="lerp", kind="end", step=step) for step in (1e-2, 5e-3))
    np.testing.assert_allclose(short.distances, less.distances, rtol=0.1)
    assert (short.distances > 0).all()
    assert short.value.net == "efficientnet-lite0-imagenet-smooth"
    squashed = path_length(lambda z: 2 * net(z) - 1, latents=ends, path="lerp", kind="end", step=1e-2)
    np.testing.assert_allclose(squashed.distances, short.distances, rtol=1e-2)


def test_trimming_leaves_out_the_extremes() -> None:
    ends = np.concatenate([np.zeros((200, 1)), np.arange(1, 201)[:, None]])
    whole = path_length(lambda z: z.double(), latents=ends, path="lerp", distance=squared, step=0.3)
    cut = path_length(lambda z: z.double(), latents=ends, path="lerp", distance=squared, step=0.3, trim=True)
    assert len(cut.distances) < len(whole.distances) == 200
    assert cut.distances.max() < whole.distances.max()
    assert cut.distances.min() > whole.distances.min()
    assert "trimmed" in cut.value.measure


@pytest.mark.parametrize(
    ("given_", "error", "name"),
    [
        ({"kind": "middle"}, InputError, "kind"),
        ({"step": 0.0}, InputError, "step"),
        ({"step": 1.0}, InputError, "step"),
        ({"n": 0}, InputError, "n:"),
        ({"path": "walk"}, InputError, "path"),
        ({"latents": np.zeros((3, 2))}, ShapeError, "latents"),
        ({"latents": np.full((2, 2), np.nan)}, ShapeError, "latents"),
        ({"distance": 3}, InputError, "distance"),
        ({"distance": lambda x, y: torch.zeros(1)}, ShapeError, "distance"),
        ({"distance": lambda x, y: torch.full((len(x),), float("nan"))}, InputError, "distance"),
        ({"distance": lambda x, y: -torch.ones(len(x))}, InputError, "distance"),
    ],
)
def test_wrong_arguments_are_named(given_: dict[str, object], error: type[Exception], name: str) -> None:
    generator = Generator(lambda z: z, Normal(2))
    with pytest.raises(error, match=name):
        path_length(generator, **{"n": 4, "distance": squared, **given_})
    with pytest.raises(InputError, match="latents"):
        path_length(lambda z: z, 4, distance=squared)
