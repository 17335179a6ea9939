"""The networks of well-known families: derivatives, wiring and layers against slow, plain versions of the same."""

from __future__ import annotations

import math
import re
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal
from torch import Tensor, nn
from torch.func import jvp, vmap

from likewise.distributions.data import FAMILIES, recognise
from likewise.distributions.formats import Network, biggan, decoders, stylegan
from likewise.distributions.formats.stylegan import modulated_conv, upfirdn
from likewise.errors import InputError
from worlds import networks as worlds

F = nn.functional


@pytest.fixture(params=worlds.ALL, ids=lambda name: name.replace(" ", "-"))
def net(request: pytest.FixtureRequest) -> Network:
    return worlds.ALL[request.param]()


# ------------------------------------------------------------------------------------------ what every network does


def test_pictures_are_in_the_unit_interval_and_rows_are_independent(net: Network) -> None:
    z, y = worlds.latents(net)
    x = net(z, y)
    assert x.ndim == 4
    assert x.shape[2] == x.shape[3]
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert float(x.std(0).max()) > 1e-3, "the latent changes nothing"
    alone = torch.cat([net(z[i : i + 1], None if y is None else y[i : i + 1]) for i in range(len(z))])
    torch.testing.assert_close(x, alone, rtol=1e-4, atol=1e-5)
    assert torch.equal(x, net(z, y))


def test_forward_mode_batched_over_directions_is_the_derivative_and_agrees_with_reverse_mode(net: Network) -> None:
    """Central differences in float64; ReLU kinks are rare enough at this step."""
    net = net.double()
    z, y = worlds.latents(net, n=2, dtype=torch.float64)
    t = torch.randn(2, *z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for space in (net, *net.spaces.values()):

        def flat(x: Tensor, space: object = space) -> Tensor:
            return space(x, y).flatten(1)  # type: ignore[operator]

        pushed = vmap(lambda d, flat=flat: jvp(flat, (z,), (d,))[1])(t)
        h = 1e-6
        central = torch.stack([(flat(z + h * d) - flat(z - h * d)) / (2 * h) for d in t])
        # Few entries may straddle a kink or a cut: the median error is exact, the norm nearly.
        assert float((pushed - central).abs().median()) <= 1e-6 * float(central.abs().max())
        assert float((pushed - central).norm()) <= 0.02 * float(central.norm())
        x = z.clone().requires_grad_()
        (pulled,) = torch.autograd.grad(flat(x), x, pushed[1])
        assert float((pulled * t[0]).sum()) == pytest.approx(float((pushed[1] * pushed[0]).sum()), rel=1e-9)


def test_keys_go_round(net: Network) -> None:
    state = net.state_dict()
    assert recognise(state) == net.family
    again = FAMILIES[net.family].from_state(state, **net.settings)
    z, y = worlds.latents(net)
    assert torch.equal(again(z, y), net(z, y))
    assert list(again.state_dict()) == list(state)
    assert repr(again) == repr(net)
    assert not any(p.requires_grad for p in again.parameters())
    assert not any(m.training for m in again.modules())


def test_a_key_too_few_too_many_or_misshapen_is_named(net: Network) -> None:
    state = net.state_dict()
    cls = FAMILIES[net.family]
    last = [key for key in state if key.endswith("weight") or key.endswith("weight_orig")][-1]
    with pytest.raises(InputError, match=r"state: .*(missing|no layer|not the weights|has no|expected)"):
        cls.from_state({key: value for key, value in state.items() if key != last}, **net.settings)
    bias = next(key for key in state if key.endswith("bias"))
    bad = {**state, bias: torch.zeros(len(state[bias]) + 1)}
    with pytest.raises(InputError, match=r"state: "):
        cls.from_state(bad, **net.settings)
    if net.family != "vae":  # a VAE's file has an encoder, whose keys nobody knows
        with pytest.raises(InputError, match=r"keys unexpected for a \w+: surplus"):
            cls.from_state({**state, "surplus": torch.zeros(1)}, **net.settings)
    with pytest.raises(InputError, match=r"state: not the weights of"):
        cls.from_state({}, nonsense=1)


def test_truncation_shares_weights_and_leaves_the_original_alone(net: Network) -> None:
    z, y = worlds.latents(net)
    before = net(z, y)
    if net.family == "progan":
        with pytest.raises(InputError, match="TruncatedNormal"):
            net.truncated(0.5)
        return
    cut = net.truncated(0.5)
    assert not torch.allclose(cut(z, y), before)
    assert torch.equal(net(z, y), before)
    assert next(cut.parameters()) is next(net.parameters())
    assert repr(cut) != repr(net)
    if net.family not in ("stylegan2", "stylegan3", "biggan_deep"):
        torch.testing.assert_close(cut(z, y), net(0.5 * z, y))


# ---------------------------------------------------------------------------------------------------------- layers


def naive_upfirdn(x: np.ndarray, f: np.ndarray, up: int, down: int, pad: tuple[int, int]) -> np.ndarray:
    """One plane: stuff zeros, pad or crop, convolve by SciPy, keep every down-th."""
    h, w = x.shape
    fine = np.zeros((h * up, w * up))
    fine[::up, ::up] = x
    low, high = pad
    fine = np.pad(fine, (max(low, 0), max(high, 0)))
    fine = fine[max(-low, 0) : fine.shape[0] - max(-high, 0), max(-low, 0) : fine.shape[1] - max(-high, 0)]
    return np.asarray(signal.convolve2d(fine, f, mode="valid")[::down, ::down])


PAD = st.integers(-2, 5)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), PAD, PAD, st.booleans(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_upfirdn_against_scipy(up: int, down: int, taps: int, low: int, high: int, separable: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(2, 3, 5, 6))
    f = rng.normal(size=taps) if separable else rng.normal(size=(taps, taps))
    if min(5 * up, 6 * up) + low + high < taps:
        return
    full = np.outer(f, f) if separable else f
    wanted = 3 * np.array([[naive_upfirdn(plane, full, up, down, (low, high)) for plane in row] for row in x])
    for most in (stylegan.DENSE, 0):  # by matrices, and as for large pictures by convolution
        with mock.patch.object(stylegan, "DENSE", most):
            got = upfirdn(torch.from_numpy(x), torch.from_numpy(f), up=up, down=down, pad=(low, high), gain=3.0)
        np.testing.assert_allclose(got.numpy(), wanted, atol=1e-12)


def test_modulated_convolution_is_a_kernel_for_each_sample() -> None:
    x, w = torch.randn(3, 4, 6, 5, dtype=torch.float64), torch.randn(7, 4, 3, 3, dtype=torch.float64)
    s = torch.randn(3, 4, dtype=torch.float64)
    got = modulated_conv(x, w, s, padding=1)
    for n in range(3):
        own = torch.zeros_like(w)
        for o in range(7):
            for i in range(4):
                own[o, i] = w[o, i] * s[n, i]
            own[o] = own[o] / math.sqrt(float((own[o] ** 2).sum()) + 1e-8)
        torch.testing.assert_close(got[n : n + 1], F.conv2d(x[n : n + 1], own, padding=1))


def plain_stylegan2(state: dict[str, Tensor], z: Tensor, y: Tensor | None, psi: float) -> Tensor:
    """The whole network by its published equations, straight from the keys: a kernel a sample, no shared layers."""

    def dense(x: Tensor, path: str, rate: float = 1.0) -> Tensor:
        weight, bias = state[f"{path}.weight"], state[f"{path}.bias"]
        return x @ (weight * rate / math.sqrt(weight.shape[1])).T + bias * rate

    def lrelu(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, 0.2 * x) * math.sqrt(2)

    def conv(x: Tensor, path: str, w: Tensor, up: bool) -> Tensor:
        kernel = state[f"{path}.weight"] * dense(w, f"{path}.affine")[0][None, :, None, None]
        kernel = kernel / (kernel.square().sum((1, 2, 3), keepdim=True) + 1e-8).sqrt()
        if up:
            fine = torch.zeros(1, x.shape[1], 2 * x.shape[2], 2 * x.shape[3], dtype=x.dtype)
            fine[:, :, ::2, ::2] = x
            blur = state[f"{path}.resample_filter"][None, None].expand(x.shape[1], 1, 4, 4)
            smooth = 4 * F.conv2d(F.pad(fine, (3, 2, 3, 2)), blur, groups=x.shape[1])
            x = F.conv2d(smooth, kernel.flip(2, 3))
        else:
            x = F.conv2d(x, kernel, padding=1)
        x = x + state[f"{path}.noise_const"] * state[f"{path}.noise_strength"] + state[f"{path}.bias"][:, None, None]
        return lrelu(x)

    w = z / (z.square().mean(1, keepdim=True) + 1e-8).sqrt()
    if y is not None:
        e = dense(torch.eye(4, dtype=z.dtype)[y], "mapping.embed")
        w = torch.cat([w, e / (e.square().mean(1, keepdim=True) + 1e-8).sqrt()], 1)
    for i in range(3):
        w = lrelu(dense(w, f"mapping.fc{i}", 0.01))
    w = torch.lerp(state["mapping.w_avg"].expand_as(w), w, psi)
    x, picture = state["synthesis.b4.const"][None], torch.zeros(1, 3, 4, 4, dtype=z.dtype)
    for size in (4, 8, 16):
        if size > 4:
            x = conv(x, f"synthesis.b{size}.conv0", w, up=True)
            fine = torch.zeros(1, 3, size, size, dtype=z.dtype)
            fine[:, :, ::2, ::2] = picture
            blur = state[f"synthesis.b{size}.resample_filter"][None, None].expand(3, 1, 4, 4)
            picture = 4 * F.conv2d(F.pad(fine, (2, 1, 2, 1)), blur, groups=3)
        x = conv(x, f"synthesis.b{size}.conv1", w, up=False)
        rgb = f"synthesis.b{size}.torgb"
        style = dense(w, f"{rgb}.affine")[0] / math.sqrt(x.shape[1])
        picture = picture + F.conv2d(x, state[f"{rgb}.weight"] * style[None, :, None, None], state[f"{rgb}.bias"])
    return picture


@pytest.mark.parametrize("classes", [None, 4])
@pytest.mark.parametrize("psi", [1.0, 0.6])
def test_stylegan2_against_its_equations(classes: int | None, psi: float) -> None:
    net = worlds.stylegan2(classes).double()
    z, y = worlds.latents(net, dtype=torch.float64)
    got = net.truncated(psi).preactivation(z, y)
    for n in range(len(z)):
        own = plain_stylegan2(net.state_dict(), z[n : n + 1], None if y is None else y[n : n + 1], psi)
        torch.testing.assert_close(got[n : n + 1], own)


# ------------------------------------------------------------------------------------------------------- StyleGAN3


def test_fourier_features_by_loops() -> None:
    layer = worlds.stylegan3().get_submodule("synthesis.input").double()
    layer.affine.weight.copy_(torch.randn(4, 12) * 0.3)
    layer.transform.copy_(torch.tensor([[0.8, -0.6, 0.1], [0.6, 0.8, -0.2], [0, 0, 1]]))
    w = torch.randn(2, 12, dtype=torch.float64)
    got = layer(w)
    t = layer.affine(w)
    for n in range(2):
        c, s, dx, dy = (t[n] / t[n, :2].norm()).tolist()
        move = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, -dx], [0, 1, -dy], [0, 0, 1]])
        move = move @ layer.transform.numpy()
        for i, j in ((0, 0), (3, 17), (35, 20)):
            place = move @ np.array([(j + 0.5 - 18) / 16, (i + 0.5 - 18) / 16, 1.0])
            waves = []
            for f, phase in zip(layer.freqs.numpy(), layer.phases.numpy(), strict=True):
                height = min(max(1 - (np.linalg.norm(f @ move[:2, :2]) - 2) / (8 - 2), 0), 1)
                waves.append(height * math.sin(2 * math.pi * (f @ place[:2] + phase)))
            mixed = layer.weight.numpy() @ np.array(waves) / math.sqrt(len(waves))
            np.testing.assert_allclose(got[n, :, i, j].numpy(), mixed, atol=1e-10)


@pytest.mark.parametrize("radial", [False, True])
def test_a_filtered_layer_one_plane_at_a_time(radial: bool) -> None:
    net = worlds.stylegan3(radial=radial).double()
    synthesis = net.get_submodule("synthesis")
    name = next(
        n for n, row in zip(synthesis.names[1:], synthesis.names, strict=False) if n.split("_")[1] != row.split("_")[1]
    )
    layer = synthesis.get_submodule(name)
    w = torch.randn(1, 12, dtype=torch.float64)
    before = synthesis.names[synthesis.names.index(name) - 1].split("_")
    x = torch.randn(1, int(before[2]), int(before[1]), int(before[1]), dtype=torch.float64)
    got = layer(x, w)
    assert got.shape[2] == int(name.split("_")[1])
    kernel = layer.weight * layer.affine(w)[0][None, :, None, None]
    kernel = kernel / kernel.square().sum((1, 2, 3), keepdim=True).sqrt() / layer.magnitude_ema.sqrt()
    y = F.conv2d(x, kernel, padding=kernel.shape[2] - 1) + layer.bias[:, None, None]
    for o, plane in enumerate(y[0].numpy()):
        up, down = (f.numpy() if f.ndim == 2 else np.outer(f, f) for f in (layer.up_filter, layer.down_filter))
        fine = layer.up**2 * naive_upfirdn(plane, up, layer.up, 1, layer.pad)
        fine = np.where(fine > 0, fine, 0.2 * fine) * math.sqrt(2)
        np.testing.assert_allclose(got[0, o].numpy(), naive_upfirdn(fine, down, 1, layer.down, (0, 0)), atol=1e-8)


def test_the_last_layer_and_the_chain() -> None:
    net = worlds.stylegan3().double()
    synthesis, state = net.get_submodule("synthesis"), net.state_dict()
    w = torch.randn(2, 12, dtype=torch.float64)
    x = synthesis.input(w)
    *others, last = synthesis.names
    for name in others:
        x = synthesis.get_submodule(name)(x, w)
    at = f"synthesis.{last}"
    assert f"{at}.up_filter" not in state
    style = (w @ state[f"{at}.affine.weight"].T / math.sqrt(12) + state[f"{at}.affine.bias"]) / math.sqrt(x.shape[1])
    own = (
        torch.einsum("oc,nc,nchw->nohw", state[f"{at}.weight"][:, :, 0, 0], style, x)
        / state[f"{at}.magnitude_ema"].sqrt()
    )
    torch.testing.assert_close(synthesis(w), 0.25 * (own + state[f"{at}.bias"][:, None, None]))


def test_paddings_keep_the_canvas_centred() -> None:
    """With symmetric kernels, a layer of the picture turned by 180° is the layer's picture turned."""
    synthesis = worlds.stylegan3().double().get_submodule("synthesis")
    sizes = [36, *(int(name.split("_")[1]) for name in synthesis.names)]
    assert len(set(sizes)) >= 3
    for name, size in zip(synthesis.names, sizes, strict=False):
        layer = synthesis.get_submodule(name)
        layer.weight.copy_(layer.weight + layer.weight.flip(2, 3))
        x = torch.randn(1, layer.weight.shape[1], size, size, dtype=torch.float64)
        w = torch.randn(1, 12, dtype=torch.float64)
        torch.testing.assert_close(layer(x.flip(2, 3), w), layer(x, w).flip(2, 3), rtol=1e-5, atol=1e-6)


# --------------------------------------------------------------------------------------------------------- BigGAN


def test_statistics_between_two_steps_are_on_the_line() -> None:
    table = torch.arange(51.0)[:, None] ** 2
    for psi in np.arange(51) / 50:  # 0.4 / 0.02 is not 20 in floating point, its row is
        assert float(biggan.at(table, float(psi))) == round(float(psi) * 50) ** 2
    assert float(biggan.at(table, 0.41 + 0.005)) == pytest.approx(20**2 + 0.75 * (21**2 - 20**2), rel=1e-5)
    assert float(biggan.at(table, 0.401)) == pytest.approx(400 + 0.05 * 41, rel=1e-5)
    assert float(biggan.at(table, 2.0)) == 2500


def test_weights_are_divided_as_torchs_spectral_norm_divides_them() -> None:
    layer = biggan.Spectral(5, 4, 3, 3)
    assert float(torch.linalg.matrix_norm(layer.weight.detach().flatten(1), 2)) == pytest.approx(1, abs=1e-5)
    theirs = nn.utils.spectral_norm(nn.Conv2d(4, 5, 3, padding=1)).eval()
    assert set(theirs.state_dict()) == set(layer.state_dict())
    layer.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(layer(x), theirs(x))


def test_attention_by_loops() -> None:
    layer = worlds.biggan().get_submodule("generator.layers.2").double()
    x = torch.randn(1, 32, 4, 4, dtype=torch.float64)
    got = layer(x, torch.zeros(1, 10), 1.0)[0].reshape(32, 16)
    theta, phi, g, o = (
        getattr(layer, f"snconv1x1_{name}").weight[:, :, 0, 0].numpy() for name in ("theta", "phi", "g", "o_conv")
    )
    grid = x[0].numpy()

    def cells(m: np.ndarray) -> list[np.ndarray]:
        full = np.einsum("oc,chw->ohw", m, grid)
        return [full[:, i : i + 2, j : j + 2].max((1, 2)) for i in (0, 2) for j in (0, 2)]

    keys, values = cells(phi), cells(g)
    for place in range(16):
        here = grid[:, place // 4, place % 4]
        score = np.exp([float(theta @ here @ key) for key in keys])
        seen = sum(s * v for s, v in zip(score / score.sum(), values, strict=True))
        np.testing.assert_allclose(got[:, place].numpy(), here + float(layer.gamma) * (o @ seen), atol=1e-9)


def plain_biggan(state: dict[str, Tensor], z: Tensor, y: Tensor, psi: float, attend: nn.Module) -> Tensor:
    """The whole network straight from the keys; attention has its own test."""

    def weight(path: str) -> Tensor:
        w = state[f"{path}.weight_orig"]
        return w / torch.dot(state[f"{path}.weight_u"], w.flatten(1) @ state[f"{path}.weight_v"])

    def conv(x: Tensor, path: str) -> Tensor:
        w = weight(path)
        return F.conv2d(x, w, state[f"{path}.bias"], padding=w.shape[2] // 2)

    def normal(x: Tensor, path: str) -> Tensor:
        i = round(psi * 4)
        mean, var = state[f"{path}.running_means"][i], state[f"{path}.running_vars"][i]
        x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-4).sqrt()
        if f"{path}.weight" in state:
            return x * state[f"{path}.weight"][:, None, None] + state[f"{path}.bias"][:, None, None]
        scale, offset = (c @ weight(f"{path}.{name}").T for name in ("scale", "offset"))
        return x * (1 + scale[:, :, None, None]) + offset[:, :, None, None]

    def twice(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    c = torch.cat([psi * z, state["embeddings.weight"].T[y]], 1)
    x = (c @ weight("generator.gen_z").T + state["generator.gen_z.bias"]).view(-1, 4, 4, 64).permute(0, 3, 1, 2)
    for i, up in ((0, False), (1, True), (2, None), (3, False), (4, True)):
        at = f"generator.layers.{i}"
        if up is None:
            x = attend(x, c, psi)
            continue
        h = conv(normal(x, f"{at}.bn_0").relu(), f"{at}.conv_0")
        h = normal(h, f"{at}.bn_1").relu()
        h = conv(twice(h) if up else h, f"{at}.conv_1")
        h = conv(normal(h, f"{at}.bn_2").relu(), f"{at}.conv_2")
        h = conv(normal(h, f"{at}.bn_3").relu(), f"{at}.conv_3")
        kept = x[:, : h.shape[1]]
        x = h + (twice(kept) if up else kept)
    return conv(normal(x, "generator.bn").relu(), "generator.conv_to_rgb")[:, :3]


@pytest.mark.parametrize("psi", [1.0, 0.25])
def test_biggan_against_its_equations(psi: float) -> None:
    net = worlds.biggan().double()
    z, y = worlds.latents(net, dtype=torch.float64)
    assert y is not None
    own = plain_biggan(net.state_dict(), z, y, psi, net.get_submodule("generator.layers.2"))
    torch.testing.assert_close(net.truncated(psi).preactivation(z, y), own)


def test_biggan_has_statistics_up_to_one() -> None:
    assert worlds.biggan().latent.support() == (-2, 2)
    for psi in (0.0, 1.5):
        with pytest.raises(InputError, match="statistics for 0 < ψ ≤ 1"):
            worlds.biggan().truncated(psi)


# --------------------------------------------------------------------------------- ProGAN, DCGAN, VAE


def test_progan_against_its_equations() -> None:
    net = worlds.progan().double()
    state = net.state_dict()
    z, _ = worlds.latents(net, dtype=torch.float64)

    def layer(x: Tensor, path: str) -> Tensor:
        weight, bias = state[f"{path}.weight"], state[f"{path}.bias"]
        c = math.sqrt(2 / weight[0].numel())
        y = x @ weight.T + bias if weight.ndim == 2 else F.conv2d(x, weight, bias, padding=weight.shape[2] // 2)
        return c * y

    def rest(x: Tensor) -> Tensor:
        x = torch.where(x > 0, x, 0.2 * x)
        return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()

    x = rest(layer(z / (z.square().mean(1, keepdim=True) + 1e-8).sqrt(), "formatLayer").view(3, 10, 4, 4))
    x = rest(layer(x, "groupScale0.0"))
    for i in range(2):
        x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
        x = rest(layer(rest(layer(x, f"scaleLayers.{i}.0")), f"scaleLayers.{i}.1"))
    torch.testing.assert_close(net.preactivation(z), layer(x, "toRGBLayers.2"))


def test_progan_reads_newer_files_too() -> None:
    net = worlds.progan()
    newer = {re.sub(r"\.(weight|bias)$", r".module.\1", key): value for key, value in net.state_dict().items()}
    assert recognise(newer) == "progan"
    z, _ = worlds.latents(net)
    assert torch.equal(FAMILIES["progan"].from_state(newer)(z), net(z))


def test_the_dcgan_of_pytorchs_example() -> None:
    theirs, ours = worlds.example_dcgan(), worlds.dcgan()
    z = torch.randn(3, 7)
    torch.testing.assert_close(ours(z), (theirs(z[:, :, None, None]) + 1) / 2)
    assert ours(z).shape == (3, 3, 64, 64)


@pytest.mark.parametrize("noise", ["const", "none", "random"])
def test_the_three_noises_of_stylegan2(noise: str) -> None:
    net = worlds.stylegan2()
    state, settings = net.state_dict(), {**net.settings, "noise": noise}
    made = FAMILIES["stylegan2"].from_state(state, **settings)
    z, _ = worlds.latents(net)
    still = {
        key: value * (0 if key.endswith("noise_strength") and noise == "none" else 1) for key, value in state.items()
    }
    wanted = FAMILIES["stylegan2"].from_state(still, **net.settings)
    assert torch.equal(made.preactivation(z), wanted.preactivation(z)), "volumes are those of the stored noise"
    assert torch.equal(made(z), wanted(z))
    torch.manual_seed(0)
    one, two = made.sample(z), made.sample(z)
    assert torch.equal(one, two) == (noise != "random")
    assert torch.equal(one, wanted(z)) == (noise != "random")
    if noise == "random":  # each image has its own noise
        same = made.sample(z[:1].expand(2, -1))
        assert not torch.equal(same[0], same[1])
    with pytest.raises(InputError, match="noise: expected one of const, none, random, got 'loud'"):
        FAMILIES["stylegan2"].from_state(state, **{**settings, "noise": "loud"})


def test_the_vaes() -> None:
    theirs, ours = worlds.example_vae(), worlds.vae()
    z = torch.randn(3, 5)
    own = torch.sigmoid(theirs.fc4(torch.relu(theirs.fc3(z)))).view(3, 1, 8, 8)
    torch.testing.assert_close(ours(z), own)
    framed, ours = worlds.framed_vae(), worlds.vae_convolutional()
    x = framed["decoder"](framed["decoder_input"](z).view(3, 8, 2, 2))
    torch.testing.assert_close(ours.preactivation(z), framed["final_layer"](x))
    torch.testing.assert_close(ours(z), (torch.tanh(framed["final_layer"](x)) + 1) / 2)


def test_a_vae_of_named_layers_with_normalised_features() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 48), nn.ReLU(), nn.Unflatten(1, (3, 4, 4)),
        nn.ConvTranspose2d(3, 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1), nn.Sigmoid(),
    ).eval()  # fmt: skip
    state = {f"decoder.{key}": value for key, value in body.state_dict().items()}
    with pytest.raises(InputError, match="strides: the weights of a vae do not say strides, slope, output; give them"):
        decoders.VAE.from_state(state)
    grid = {"strides": [2, 1], "paddings": [1, 1], "slope": 0.0, "output": "sigmoid"}
    ours = decoders.VAE.from_state(state, **grid)
    assert [unit.kind for unit in ours.units] == ["linear", "linear", "up", "conv"]
    z = torch.randn(2, 4)
    torch.testing.assert_close(ours(z), body(z))


def test_strides_and_slope_that_weights_do_not_tell_must_be_given() -> None:
    body = nn.Sequential(nn.ConvTranspose2d(4, 3, 5, 1, 0), nn.ReLU(), nn.ConvTranspose2d(3, 1, 7, 3, 2), nn.Tanh())
    state = {f"main.{key}": value for key, value in body.state_dict().items()}
    for told, words in (({}, "strides, slope"), ({"slope": 0.0}, "strides"), ({"strides": [1, 3]}, "slope")):
        with pytest.raises(InputError, match=f"the weights of a dcgan do not say {words}; give them"):
            decoders.DCGAN.from_state(state, **told)
    z = torch.randn(2, 4)
    ours = decoders.DCGAN.from_state(state, strides=[1, 3], paddings=[0, 2], slope=0.0)
    torch.testing.assert_close(ours(z), (body(z[:, :, None, None]) + 1) / 2)
    with pytest.raises(InputError, match="strides: expected 2, one a convolution, got 1"):
        decoders.DCGAN.from_state(state, strides=[1], slope=0.0)


def test_the_order_of_latent_and_class_must_be_given() -> None:
    state = worlds.upsampling().state_dict()
    with pytest.raises(InputError, match="latent_first: the weights of a upsampling_dcgan do not say latent_first"):
        decoders.UpsamplingDCGAN.from_state(state, slope=0.0)
    one, two = (decoders.UpsamplingDCGAN.from_state(state, slope=0.0, latent_first=first) for first in (True, False))
    z, y = worlds.latents(one)
    assert not torch.allclose(one(z, y), two(z, y))
