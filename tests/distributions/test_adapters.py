"""Adapters: weights, files and modules in; generators with their latent, classes, spaces and truncation out."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from likewise.distributions import Generator, Normal, TruncatedNormal, adapters
from likewise.distributions.networks.network import Network
from likewise.distributions.spectra import spectrum
from likewise.errors import FileError, InputError, MissingExtra
from worlds import networks as worlds

STYLED = {"stylegan2": worlds.stylegan2, "stylegan3": worlds.stylegan3}
PLAIN = {
    "biggan_deep": worlds.biggan,
    "progan": worlds.progan,
    "nvae": worlds.nvae,
    "vae": worlds.vae,
    "dcgan": worlds.dcgan,
}


@pytest.mark.parametrize(("name", "make"), [*STYLED.items(), *PLAIN.items()])
def test_a_state_dict_becomes_a_generator(name: str, make: Callable[[], Network]) -> None:
    net = make()
    generator = getattr(adapters, name)(net.state_dict())
    assert isinstance(generator, Generator)
    assert (generator.dim, generator.labels, generator.name) == (net.dim, net.labels, name)
    z, y = worlds.latents(net)
    assert torch.equal(generator(z, y), net(z, y))
    spaces = ["pixel", "preactivation", *(["style"] if name in STYLED else [])]
    maps = [generator.in_space(space).function(y) for space in spaces]
    torch.testing.assert_close(maps[0](z), net(z, y).flatten(1))
    torch.testing.assert_close(maps[1](z), net.preactivation(z, y).flatten(1))
    if name in STYLED:
        assert maps[2](z).shape == (3, 12)
    else:
        with pytest.raises(InputError, match="space: this generator has pixel, preactivation"):
            generator.in_space("style")


def test_families_are_told_by_their_keys() -> None:
    for make in worlds.ALL.values():
        net = make()
        assert adapters.weights(net.state_dict()).net.family == net.family
        named = adapters.weights(net.state_dict(), net.family)
        assert named.digest == adapters.weights(net.state_dict()).digest


@pytest.mark.parametrize("make", [worlds.stylegan2, worlds.nvae, worlds.biggan])
def test_psi_is_the_familys_truncation_and_tells_generators_apart(make: Callable[[], Network]) -> None:
    net = make()
    cut = adapters.weights(net.state_dict(), psi=0.5)
    assert cut.psi == 0.5
    z, y = worlds.latents(net)
    assert torch.equal(cut(z, y), net.truncated(0.5)(z, y))
    assert cut.digest != adapters.weights(net.state_dict()).digest
    assert cut.digest == adapters.weights(net.state_dict()).truncated(0.5).digest
    before = cut.in_space("preactivation").function(y)
    torch.testing.assert_close(before(z), net.truncated(0.5).preactivation(z, y).flatten(1))


def test_truncation_composes_with_volumes() -> None:
    """C.3: volumes are those of the truncated map. In style space they shrink by ψ exactly."""
    net = worlds.stylegan2()
    whole, cut = (adapters.stylegan2(net.state_dict(), psi=psi, space="style") for psi in (1.0, 0.4))
    z, _ = worlds.latents(net)
    full, small = (spectrum(g.function(), z, 5, method="gram").values for g in (whole, cut))
    np.testing.assert_allclose(small, 0.4 * full, rtol=1e-4)


def test_the_range_shifts_log_volumes_by_a_constant() -> None:
    """(1 + tanh)/2 against tanh: k log 2 lower for every latent."""
    net = worlds.dcgan()
    z, _ = worlds.latents(net, 4)
    ours = spectrum(adapters.dcgan(net.state_dict()).function(), z, 3, method="gram").log_volume
    theirs = spectrum(lambda x: torch.tanh(net.preactivation(x)).flatten(1), z, 3, method="gram").log_volume
    np.testing.assert_allclose(theirs - ours, 3 * np.log(2), rtol=1e-4)


def test_a_sphere_of_latents_has_one_direction_less() -> None:
    for make in (worlds.progan, worlds.stylegan2):
        net = make().double()
        z, _ = worlds.latents(net, 2, torch.float64)
        values = spectrum(lambda x, net=net: net.preactivation(x).flatten(1), z, net.dim, method="gram").values
        assert (values[:, -1] < 1e-5 * values[:, 0]).all()
        assert (values[:, -2] > 1e-4 * values[:, 0]).all()


def test_latents_can_be_replaced() -> None:
    state = worlds.progan().state_dict()
    assert adapters.progan(state, latent=TruncatedNormal(8, 1.0)).latent.support() == (-1, 1)
    with pytest.raises(InputError, match="latent: expected 8 dimensions, got 7"):
        adapters.progan(state, latent=Normal(7))
    with pytest.raises(InputError, match="TruncatedNormal"):
        adapters.progan(state, psi=0.5)
    assert adapters.biggan_deep(worlds.biggan().state_dict()).latent == TruncatedNormal(6, 2.0)


def test_options_are_named_and_misspelt_ones_refused() -> None:
    state = worlds.vae().state_dict()
    made = adapters.vae(state, name="mine", space="preactivation", batch=2)
    assert (made.name, made.space, made.batch) == ("mine", "preactivation", 2)
    with pytest.raises(InputError, match="pssi: not an option; there are psi, latent"):
        adapters.progan(worlds.progan().state_dict(), pssi=0.3)  # type: ignore[call-arg]
    assert adapters.vae(state, output="tanh").net.output == "tanh"
    with pytest.raises(InputError, match="output: expected one of tanh, sigmoid, clamp"):
        adapters.vae(state, output="relu")


# ----------------------------------------------------------------------------------------------- modules of the user


class TheirMapping(nn.Module):
    """The official call, on our weights."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.inner = net.mapping

    def forward(self, z: Tensor, c: Tensor | None, truncation_psi: float = 1.0) -> Tensor:
        w = self.inner(z, None if c is None else c.argmax(1), truncation_psi)
        return w[:, None].repeat(1, 6, 1)


class TheirSynthesis(nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.inner = net.synthesis

    def forward(self, ws: Tensor, noise_mode: str = "random") -> Tensor:
        noise = torch.randn(()) if noise_mode == "random" else 0.0
        return self.inner(ws[:, 0]) + noise


class Theirs(nn.Module):
    def __init__(self, net: Any, classes: int) -> None:
        super().__init__()
        self.mapping, self.synthesis = TheirMapping(net), TheirSynthesis(net)
        self.z_dim, self.c_dim = net.dim, classes


@pytest.mark.parametrize("classes", [None, 4])
def test_a_module_with_the_official_calls(classes: int | None) -> None:
    net = worlds.stylegan2(classes)
    module = Theirs(net, classes or 0)
    for adapter in (adapters.stylegan2, adapters.stylegan3):
        made = adapter(module, psi=0.7)
        assert made.labels == classes
        z, y = worlds.latents(net)
        torch.testing.assert_close(made(z, y), net.truncated(0.7)(z, y))
        torch.testing.assert_close(made.in_space("style").function(y)(z), net.truncated(0.7).style(z, y))
    assert made.digest != adapters.stylegan3(module).digest
    with pytest.raises(InputError, match="module: expected mapping, synthesis and z_dim"):
        adapters.stylegan2(nn.Linear(2, 2))


def test_extra_keywords_reach_a_synthesis_that_takes_any() -> None:
    seen: dict[str, Any] = {}

    class Greedy(TheirSynthesis):
        def forward(self, ws: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
            seen.update(options)
            return super().forward(ws, options["noise_mode"])

    net = worlds.stylegan2()
    module = Theirs(net, 0)
    module.synthesis = Greedy(net)
    adapters.stylegan2(module).draw(1)
    assert seen == {"noise_mode": "const", "force_fp32": True}


# ------------------------------------------------------------------------------------------------------------- files


def test_files_of_weights(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    net = worlds.dcgan()
    state = net.state_dict()
    torch.save(state, tmp_path / "a.pth")
    torch.save({"epoch": 3, "netG": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "b.pt")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "c.safetensors")
    torch.save({key: v.half() if v.is_floating_point() else v for key, v in state.items()}, tmp_path / "d.bin")
    z, _ = worlds.latents(net)
    for name in ("a.pth", "b.pt", "c.safetensors"):
        made = adapters.dcgan(tmp_path / name)
        assert torch.equal(made(z), net(z))
        assert made.name == name[0]
    torch.testing.assert_close(adapters.dcgan(tmp_path / "d.bin")(z), net(z), rtol=0.05, atol=0.05)


def test_averaged_weights_are_preferred(tmp_path: Path) -> None:
    plain, averaged = worlds.progan().state_dict(), worlds.progan().state_dict()
    averaged = {key: value + 1 for key, value in averaged.items()}
    torch.save({"netG": plain, "avgG": averaged, "netD": {"w": torch.zeros(1)}}, tmp_path / "p.pt")
    made = adapters.progan(tmp_path / "p.pt")
    assert torch.equal(made.net.formatLayer.weight, averaged["formatLayer.weight"])


class Bomb:
    """A pickle that would write a file if anything of it were run."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.target, "boom")


@pytest.mark.parametrize("kind", ["torch", "pickle", "gzip"])
def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    bomb, file = Bomb(tmp_path / "ran"), tmp_path / "evil.pkl"
    if kind == "torch":
        torch.save({"G_ema": bomb}, file)
    elif kind == "pickle":
        file.write_bytes(pickle.dumps({"G_ema": bomb}))
    else:
        file.write_bytes(gzip.compress(pickle.dumps(bomb)))
    with pytest.raises(FileError) as caught:
        adapters.stylegan2(file)
    words = str(caught.value)
    assert words.startswith(f"{file}: ")
    assert "\n" not in words
    if kind != "gzip":
        assert "unpickling would run its code" in words
        assert ".state_dict(), " in words
    assert not (tmp_path / "ran").exists()


def test_damaged_and_foreign_files_are_told_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good.pt"
    torch.save(worlds.vae().state_dict(), good)
    cases = {
        "cut.pt": good.read_bytes()[:900],
        "empty.pt": b"",
        "text.pth": b"not weights",
        "cut.safetensors": (500).to_bytes(8, "little") + b'{"a":',
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FileError) as caught:
            adapters.weights(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path / name))
        assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="no such file"):
        adapters.weights(tmp_path / "absent.pt")
    with pytest.raises(FileError, match="is a folder"):
        adapters.weights(tmp_path)
    torch.save({"conv.weight": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(FileError, match=r"other.pt: family: the keys \(conv.weight\) are those of no known family"):
        adapters.weights(tmp_path / "other.pt")
    with pytest.raises(FileError, match=r"good.pt: not the weights of a stylegan2: "):
        adapters.stylegan2(good)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FileError, match="expected tensors by name, or a checkpoint that holds them; got list"):
        adapters.weights(tmp_path / "list.pt")


def test_weights_that_are_not_numbers_are_named() -> None:
    state = worlds.vae().state_dict()
    state["fc4.bias"][0] = torch.nan
    with pytest.raises(InputError, match=r"state: fc4.bias contains NaN or infinity"):
        adapters.vae(state)


# -------------------------------------------------------------------------------------------------------------- ONNX


def onnx_file(path: Path, *, batch: int | str = "n", classes: str | None = None, dim: int | str = 6) -> tuple[Any, Any]:
    """tanh(z W + e_y) as (n, 3, 2, 2); the class as a number or as a one-hot row."""
    onnx = pytest.importorskip("onnx", reason="pip install onnx onnxruntime")
    pytest.importorskip("onnxruntime", reason="pip install 'likewise[onnx]'")
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    W, E = rng.normal(size=(6, 12)).astype(np.float32), rng.normal(size=(4, 12)).astype(np.float32)
    inputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [batch, dim])]
    nodes = [helper.make_node("MatMul", ["z", "W"], ["a"])]
    if classes == "number":
        inputs.append(helper.make_tensor_value_info("y", TensorProto.INT64, [batch]))
        nodes.append(helper.make_node("Gather", ["E", "y"], ["e"]))
    elif classes == "one-hot":
        inputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4]))
        nodes.append(helper.make_node("MatMul", ["y", "E"], ["e"]))
    if classes:
        nodes.append(helper.make_node("Add", ["a", "e"], ["b"]))
    nodes += [
        helper.make_node("Tanh", ["b" if classes else "a"], ["t"]),
        helper.make_node("Reshape", ["t", "s"], ["x"]),
    ]
    weights = [numpy_helper.from_array(W, "W"), numpy_helper.from_array(np.array([-1, 3, 2, 2]), "s")]
    weights += [numpy_helper.from_array(E, "E")] if classes else []
    outputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 2, 2])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return torch.from_numpy(W), torch.from_numpy(E)


@pytest.mark.parametrize("batch", ["n", 1, 4])
def test_onnx_files_are_black_boxes(tmp_path: Path, batch: int | str) -> None:
    W, _ = onnx_file(tmp_path / "g.onnx", batch=batch)
    made = adapters.onnx(tmp_path / "g.onnx")
    assert (made.name, made.dim, made.labels) == ("g", 6, None)
    z = torch.randn(5, 6)

    def plain(x: Tensor) -> Tensor:
        return (torch.tanh(x @ W) + 1) / 2

    torch.testing.assert_close(made(z).flatten(1), plain(z))
    found = spectrum(made.function(), z, 4)
    assert "fd" in found.method
    np.testing.assert_allclose(found.values, spectrum(plain, z, 4, method="gram").values, rtol=3e-3)
    torch.testing.assert_close(made.truncated(0.5)(z).flatten(1), plain(0.5 * z))


def test_onnx_files_with_classes(tmp_path: Path) -> None:
    for kind in ("number", "one-hot"):
        W, E = onnx_file(tmp_path / "c.onnx", classes=kind, batch=2)
        if kind == "number":
            with pytest.raises(InputError, match=r"labels: .*c.onnx takes a class; give the number of classes"):
                adapters.onnx(tmp_path / "c.onnx")
        made = adapters.onnx(tmp_path / "c.onnx", labels=4 if kind == "number" else None)
        assert made.labels == 4
        z, y = torch.randn(3, 6), torch.tensor([3, 0, 2])
        torch.testing.assert_close(made(z, y).flatten(1), (torch.tanh(z @ W + E[y]) + 1) / 2)


def test_onnx_networks_travel_and_refuse_derivatives(tmp_path: Path) -> None:
    onnx_file(tmp_path / "g.onnx")
    made = adapters.onnx(tmp_path / "g.onnx")
    z = torch.randn(2, 6)
    assert torch.equal(pickle.loads(pickle.dumps(made.net))(z), made(z))
    with pytest.raises(NotImplementedError, match="finite differences"):
        torch.func.jvp(made.net, (z,), (z,))
    with pytest.raises(NotImplementedError, match="finite differences"):
        made.net(z.clone().requires_grad_())
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="finite differences"):
        made.net(torch.autograd.forward_ad.make_dual(z, z))
    other = adapters.onnx(tmp_path / "g.onnx", black=0.0)
    assert other.digest != made.digest
    assert adapters.onnx(tmp_path / "g.onnx").digest == made.digest


def test_onnx_files_that_do_not_fit(tmp_path: Path) -> None:
    onnx_file(tmp_path / "g.onnx", dim="d")
    with pytest.raises(InputError, match=r"dim: .* does not say how long a latent is; give dim="):
        adapters.onnx(tmp_path / "g.onnx")
    assert adapters.onnx(tmp_path / "g.onnx", dim=6).dim == 6
    with pytest.raises(InputError, match=r"labels: .* takes no class"):
        adapters.onnx(tmp_path / "g.onnx", dim=6, labels=3)
    with pytest.raises(InputError, match="black, white"):
        adapters.onnx(tmp_path / "g.onnx", dim=6, black=1.0)
    (tmp_path / "bad.onnx").write_bytes(b"nothing")
    with pytest.raises(FileError, match=r"bad.onnx: not an ONNX file that can be run") as caught:
        adapters.onnx(tmp_path / "bad.onnx")
    assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="no such file"):
        adapters.onnx(tmp_path / "absent.onnx")


def test_onnx_without_its_runtime_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (tmp_path / "g.onnx").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'likewise\[onnx\]'"):
        adapters.onnx(tmp_path / "g.onnx")


# -------------------------------------------------------------------------------------- the real generators of digits


def digits(data: Path) -> Tensor:
    raw = gzip.decompress((data / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28) / np.float32(255))


def digit_labels(data: Path) -> np.ndarray:
    raw = gzip.decompress((data / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(raw, np.uint8, offset=8)


@pytest.mark.parametrize("name", ["dcgan_mnist_z64", "cwgan_mnist_z10"])
def test_real_generators_make_pictures_with_the_statistics_of_digits(data: Path, name: str) -> None:
    made = adapters.dcgan(data / "generators" / f"{name}.pth")
    x, real = made.draw(200), digits(data)
    assert x.shape == (200, 1, 28, 28)
    assert float(x.mean()) == pytest.approx(float(real.mean()), abs=0.03)
    assert float(x.std()) == pytest.approx(float(real.std()), abs=0.03)
    both = torch.stack([x.mean(0).flatten(), real.mean(0).flatten()])
    assert float(torch.corrcoef(both)[0, 1]) > 0.95


def test_the_conditional_generator_draws_the_class_that_it_is_asked_for(data: Path) -> None:
    """By a linear classifier of 4,000 real digits; with the other order of latent and class it fails."""
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.pipeline import make_pipeline

    judge = make_pipeline(PCA(60, random_state=0), LinearDiscriminantAnalysis())
    judge.fit(digits(data).flatten(1).numpy()[:4000], digit_labels(data)[:4000])
    file = data / "generators" / "cwgan_mnist_z10.pth"
    y = np.arange(100) % 10
    shares: dict[bool | None, float] = {}
    for first in (None, False):
        made = adapters.dcgan(file, latent_first=first)
        x = made(made.latent.sample(100, np.random.default_rng(0)), y)
        shares[first] = float((judge.predict(x.flatten(1).numpy()) == y).mean())
    assert made.net.latent_first is False
    assert shares[None] > 0.5
    assert shares[False] < 0.3


def test_stored_statistics_are_those_of_the_real_conditional_network(data: Path) -> None:
    """Its normalisations, ε of 0.8 and ReLU: what reaches the last one has the mean and variance that it stored."""
    net = adapters.dcgan(data / "generators" / "cwgan_mnist_z10.pth").net
    seen: list[Tensor] = []
    last = net.conv_blocks["7"]
    hook = last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    torch.manual_seed(0)
    net(torch.randn(150, 10), torch.arange(150) % 10)
    hook.remove()
    spread = last.running_var.sqrt()
    assert float(((seen[0].mean((0, 2, 3)) - last.running_mean).abs() / spread).mean()) < 0.05
    assert float((seen[0].var((0, 2, 3)) / last.running_var).log().abs().mean()) < 0.05
