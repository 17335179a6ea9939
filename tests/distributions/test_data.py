"""load and save: names, module:attribute, weights, checkpoints, modules, the shipped networks; refusals in one line."""

from __future__ import annotations

import gzip
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.pipeline import make_pipeline
from torch import Tensor, nn

import likewise
from likewise.distributions import Generator, Normal, TruncatedNormal, Uniform, load, metrics, save, spectrum
from likewise.distributions.data import GENERATORS, fashion_features, load_object, pretrained
from likewise.distributions.formats import Network
from likewise.errors import FileError, InputError
from likewise.store import checkpoint
from worlds import networks as worlds


@pytest.mark.parametrize("name", ["stylegan2", "stylegan3 t", "biggan_deep", "progan", "vae", "dcgan"])
def test_a_state_dict_becomes_a_generator(name: str) -> None:
    net = worlds.ALL[name]()
    generator = load(net.state_dict(), **net.settings)
    assert (generator.dim, generator.labels, generator.name) == (net.dim, net.labels, net.family)
    z, y = worlds.latents(net)
    assert torch.equal(generator(z, y), net(z, y))
    for space, of in (("pixel", net), ("preactivation", net.preactivation)):
        torch.testing.assert_close(generator.in_space(space).function(y)(z), of(z, y).flatten(1))
    if name.startswith("stylegan"):
        assert generator.in_space("style").function(y)(z).shape == (3, 12)
        return
    with pytest.raises(InputError, match="space: this generator has pixel, preactivation"):
        generator.in_space("style")


@pytest.mark.parametrize("make", [worlds.stylegan2, worlds.dcgan, worlds.biggan])
def test_psi_is_the_familys_truncation_and_tells_generators_apart(make: Callable[[], Network]) -> None:
    net = make()
    cut = load(net.state_dict(), psi=0.5, **net.settings)
    assert cut.psi == 0.5
    z, y = worlds.latents(net)
    assert torch.equal(cut(z, y), net.truncated(0.5)(z, y))
    whole = load(net.state_dict(), **net.settings)
    assert cut.digest != whole.digest
    assert cut.digest == whole.truncated(0.5).digest
    before = cut.in_space("preactivation").function(y)
    torch.testing.assert_close(before(z), net.truncated(0.5).preactivation(z, y).flatten(1))


def test_truncation_composes_with_volumes() -> None:
    """C.3: volumes are those of the truncated map. In style space they shrink by ψ exactly."""
    net = worlds.stylegan2()
    whole, cut = (load(net.state_dict(), psi=psi, space="style", **net.settings) for psi in (1.0, 0.4))
    z, _ = worlds.latents(net)
    full, small = (spectrum(g.function(), z, 5, method="gram").values for g in (whole, cut))
    np.testing.assert_allclose(small, 0.4 * full, rtol=1e-4)


def test_a_sphere_of_latents_has_one_direction_less() -> None:
    for make in (worlds.progan, worlds.stylegan2):
        net = make().double()
        z, _ = worlds.latents(net, 2, torch.float64)
        values = spectrum(lambda x, net=net: net.preactivation(x).flatten(1), z, net.dim, method="gram").values
        assert (values[:, -1] < 1e-5 * values[:, 0]).all()
        assert (values[:, -2] > 1e-4 * values[:, 0]).all()


def test_options_of_weights() -> None:
    made = load(worlds.vae().state_dict(), name="mine", space="preactivation", batch=2, output="tanh")
    assert (made.name, made.space, made.batch, made.net.output) == ("mine", "preactivation", 2, "tanh")
    assert load(worlds.progan().state_dict(), latent=TruncatedNormal(8, 1.0)).latent.support() == (-1, 1)
    assert load(worlds.biggan().state_dict()).latent == TruncatedNormal(6, 2.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"latent": Normal(7)}, "latent: expected 8 dimensions, got 7"),
        ({"psi": 0.5}, "TruncatedNormal"),
        ({"pssi": 0.3}, "pssi: not an option; there are psi, latent"),
        ({"family": "gan"}, "family: expected one of stylegan3"),
        ({"family": "stylegan2"}, "not the weights of a stylegan2"),
        ({"family": "vae", "output": "relu"}, "no layer of a decoder"),
    ],
)
def test_wrong_options_of_weights_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load(worlds.progan().state_dict(), **options)
    with pytest.raises(InputError, match="output: expected one of tanh, sigmoid, clamp"):
        load(worlds.vae().state_dict(), output="relu")


# ----------------------------------------------------------------------------------------------- modules of the user


class Theirs(nn.Module):
    """The official calls, on our weights."""

    def __init__(self, net: Any, classes: int) -> None:
        super().__init__()
        self.net, self.z_dim, self.c_dim = net, net.dim, classes

    def mapping(self, z: Tensor, c: Tensor | None, truncation_psi: float = 1.0) -> Tensor:
        w = self.net.mapping(z, None if c is None else c.argmax(1), truncation_psi)
        return w[:, None].repeat(1, 6, 1)

    def synthesis(self, ws: Tensor, noise_mode: str = "random") -> Tensor:
        return self.net.synthesis(ws[:, 0]) + (torch.randn(()) if noise_mode == "random" else 0.0)


@pytest.mark.parametrize("classes", [None, 4])
def test_a_module_with_the_official_calls(classes: int | None) -> None:
    net = worlds.stylegan2(classes)
    module = Theirs(net, classes or 0)
    for name in ("stylegan2", "stylegan3"):
        made = load(module, family=name, psi=0.7)
        assert made.labels == classes
        z, y = worlds.latents(net)
        torch.testing.assert_close(made(z, y), net.truncated(0.7)(z, y))
        torch.testing.assert_close(made.in_space("style").function(y)(z), net.truncated(0.7).style(z, y))
    assert made.digest != load(module).digest
    with pytest.raises(InputError, match="module: expected mapping, synthesis and z_dim"):
        load(nn.Linear(2, 2))


# ------------------------------------------------------------------------------------------------------------- files


def test_files_of_weights(tmp_path: Path) -> None:
    net = worlds.dcgan()
    state = net.state_dict()
    torch.save(state, tmp_path / "a.pth")
    torch.save({"epoch": 3, "netG": {f"module.{key}": value for key, value in state.items()}}, tmp_path / "b.pt")
    save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / "c.safetensors")
    torch.save({key: v.half() if v.is_floating_point() else v for key, v in state.items()}, tmp_path / "d.bin")
    z, _ = worlds.latents(net)
    with pytest.raises(
        FileError, match=r"a\.pth: strides: the weights of a dcgan do not say strides, slope; give them"
    ):
        load(tmp_path / "a.pth")
    for name in ("a.pth", "b.pt", "c.safetensors"):
        made = load(tmp_path / name, **worlds.EXAMPLE)
        assert torch.equal(made(z), net(z))
        assert made.name == name[0]
    torch.testing.assert_close(load(tmp_path / "d.bin", **worlds.EXAMPLE)(z), net(z), rtol=0.05, atol=0.05)


class Bomb:
    """A pickle that would write a file if anything of it were run."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.target, "boom")


@pytest.mark.parametrize("kind", ["torch", "gzip"])
def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path, kind: str) -> None:
    bomb, file = Bomb(tmp_path / "ran"), tmp_path / "evil.pkl"
    if kind == "torch":
        torch.save({"G_ema": bomb}, file)
    else:
        file.write_bytes(gzip.compress(pickle.dumps(bomb)))
    with pytest.raises(FileError) as caught:
        load(file)
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
    torch.save({"conv.weight": torch.zeros(2)}, tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "folder").mkdir()
    cases: dict[str, tuple[bytes | None, str]] = {
        "cut.pt": (good.read_bytes()[:900], ""),
        "empty.pt": (b"", ""),
        "text.pth": (b"not weights", ""),
        "cut.safetensors": ((500).to_bytes(8, "little") + b'{"a":', ""),
        "absent.pt": (None, "no such file"),
        "folder": (None, "is a folder"),
        "other.pt": (None, "family: the keys (conv.weight) are those of no known family"),
        "list.pt": (None, "expected tensors by name, or a checkpoint that holds them; got list"),
    }
    for name, (contents, words) in cases.items():
        if contents is not None:
            (tmp_path / name).write_bytes(contents)
        with pytest.raises(FileError) as caught:
            load(tmp_path / name)
        said = str(caught.value)
        assert said.startswith(str(tmp_path / name))
        assert words in said
        assert "\n" not in said


# -------------------------------------------------------------------------------------- the real generators of digits


def digits(data: Path) -> Tensor:
    raw = gzip.decompress((data / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).reshape(-1, 1, 28, 28) / np.float32(255))


def digit_labels(data: Path) -> np.ndarray:
    raw = gzip.decompress((data / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes())
    return np.frombuffer(raw, np.uint8, offset=8)


@pytest.mark.parametrize("name", ["dcgan_mnist_z64", "cwgan_mnist_z10"])
def test_real_generators_make_pictures_with_the_statistics_of_digits(data: Path, name: str) -> None:
    told = {"dcgan_mnist_z64": {"strides": [2, 1, 2, 2]}, "cwgan_mnist_z10": {"latent_first": True}}[name]
    made = load(data / "generators" / f"{name}.pth", slope=0.0, **told)
    x, real = made.draw(200), digits(data)
    assert x.shape == (200, 1, 28, 28)
    assert float(x.mean()) == pytest.approx(float(real.mean()), abs=0.03)
    assert float(x.std()) == pytest.approx(float(real.std()), abs=0.03)
    both = torch.stack([x.mean(0).flatten(), real.mean(0).flatten()])
    assert float(torch.corrcoef(both)[0, 1]) > 0.95


def test_the_conditional_generator_draws_the_class_that_it_is_asked_for(data: Path) -> None:
    """By a linear classifier of 2,000 real digits; with the other order of latent and class it fails."""
    judge = make_pipeline(PCA(60, random_state=0), LinearDiscriminantAnalysis())
    judge.fit(digits(data).flatten(1).numpy()[:2000], digit_labels(data)[:2000])
    file = data / "generators" / "cwgan_mnist_z10.pth"
    y = np.arange(100) % 10
    shares = []
    for first in (True, False):
        made = load(file, latent_first=first, slope=0.0)
        x = made(made.latent.sample(100, np.random.default_rng(0)), y)
        shares.append(float((judge.predict(x.flatten(1).numpy()) == y).mean()))
    assert shares[0] > 0.5
    assert shares[1] < 0.3
    with pytest.raises(FileError, match="the weights of a upsampling_dcgan do not say latent_first"):
        load(file, slope=0.0)


# ---------------------------------------------------------------------------------------------- module:attribute


PROGRAM = """
import torch
from likewise.distributions import Generator, Normal

net = torch.nn.Linear(3, 12)
ready = Generator(net, Normal(3), name="ready")
bare = torch.nn.Linear(3, 12)
declared = torch.nn.Linear(3, 12)
declared.latent = Normal(3)
number = 5

def make():
    return ready

def make_net():
    return declared

def needs(width):
    return ready

def breaks():
    raise RuntimeError("two\\nlines")

class Holder:
    inside = ready
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, forgotten afterwards."""
    name = "program_of_a_user"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize("attribute", ["ready", "make", "Holder.inside", "declared", "make_net"])
def test_a_generator_by_module_and_attribute(program: str, attribute: str) -> None:
    before = list(sys.path)
    made = load(f"{program}:{attribute}")
    assert isinstance(made, Generator)
    assert made.name == (f"{program}:{attribute}" if attribute in ("declared", "make_net") else "ready")
    assert (made.dim, sys.path) == (3, before)


def test_a_program_elsewhere(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    file = tmp_path / f"{program}.py"
    assert load(f"{file}:ready").name == "ready"
    assert load_object(f"../{program}.py:number") == 5
    assert load_object(f"{file}:ready") is load_object(f"../{program}.py:ready")
    assert load_object(f"{program}:number") == 5


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{}:absent", "program_of_a_user has no absent"),
        ("{}:number", "expected a Generator, a network with a `latent`"),
        ("{}:bare", "a module without a latent; wrap it"),
        ("{}:needs", "takes arguments; give a function without any"),
        ("{}:breaks", "calling it failed: RuntimeError: two lines"),
        ("no_such_module_here:make", "there is no module no_such_module_here here or on Python's path"),
        ("{}.py", "is a program; name what is in it"),
        ("absent.py:make", "no such file"),
        ("absent.pth", "no such file, and not the module:attribute of a generator"),
    ],
)
def test_refusals_are_one_line(program: str, spec: str, words: str) -> None:
    with pytest.raises((InputError, FileError)) as caught:
        load(spec.format(program))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_written_program.py").write_text("def make(:\n")
    (tmp_path / "needy_program.py").write_text("import a_package_that_nobody_has\n")
    for name, words in (("half_written_program", "SyntaxError"), ("needy_program", "needs a_package_that_nobody_has")):
        for spec in (f"{name}:make", f"{name}.py:make"):
            with pytest.raises(InputError, match=words) as caught:
                load(spec)
            assert "\n" not in str(caught.value)
            assert name not in sys.modules
    (tmp_path / "json.py").write_text("make = None\n")
    with pytest.raises(InputError, match="a module called json is loaded already; rename the file"):
        load("json.py:make")


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", list(worlds.ALL), ids=lambda name: name.replace(" ", "-"))
def test_save_and_load_of_every_family(tmp_path: Path, name: str) -> None:
    net = worlds.ALL[name]()
    psi = 1.0 if net.family == "progan" else 0.5
    made = load(net.state_dict(), psi=psi, name="mine", **net.settings)
    save(made, tmp_path / "g.safetensors")
    again = load(tmp_path / "g.safetensors")
    assert (again.name, again.psi, again.latent) == ("mine", psi, made.latent)
    assert again.digest == made.digest
    z, y = worlds.latents(net)
    assert torch.equal(again(z, y), made(z, y))
    first = (tmp_path / "g.safetensors").read_bytes()
    save(again, tmp_path / "h.safetensors")
    assert (tmp_path / "h.safetensors").read_bytes() == first


@pytest.mark.parametrize("latent", [Normal(4), Uniform(4, -2, 3), TruncatedNormal(4, 1.5)])
def test_what_is_given_to_an_adapter_is_saved_too(tmp_path: Path, latent: Any) -> None:
    body = nn.Sequential(nn.ConvTranspose2d(4, 3, 5), nn.ReLU(), nn.ConvTranspose2d(3, 1, 7, 3, 2))
    state = {f"main.{key}": value for key, value in body.state_dict().items()}
    made = load(state, strides=[1, 3], paddings=[0, 2], slope=0.1, latent=latent)
    save(made, tmp_path / "g.safetensors")
    again = load(tmp_path / "g.safetensors")
    assert (again.latent, again.digest) == (latent, made.digest)


def test_damaged_and_foreign_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    save(load(worlds.vae().state_dict()), file)
    arrays, whole = checkpoint.read(file)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(data)
    with pytest.raises(FileError, match="do not match its checksum"):
        load(tmp_path / "flipped.safetensors")
    about = whole["header"]
    broken = {
        "class": ({**whole, "class": "sets.Nothing"}, "is not known"),
        "format": ({**whole, "format": 99}, "is of format 99"),
        "family": ({**whole, "header": {**about, "family": "os"}}, "family: expected one of"),
        "settings": ({**whole, "header": {**about, "settings": {"exec": 1}}}, "exec: not an option"),
        "latent": ({**whole, "header": {**about, "latent": {"kind": "Normal", "dim": -1}}}, "dim: expected"),
        "kind": ({**whole, "header": {**about, "latent": {"kind": "Odd"}}}, "does not hold a generator"),
        "empty": ({**whole, "header": {}}, "does not hold a generator"),
    }
    for name, (header, words) in broken.items():
        path = tmp_path / f"{name}.safetensors"
        checkpoint.write(path, arrays, header)
        with pytest.raises(FileError) as caught:
            load(path)
        assert words in str(caught.value), name
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="the file holds a vae, got 'dcgan'"):
        load(file, family="dcgan")


def test_weights_by_a_named_family_and_a_file_with_a_colon(tmp_path: Path) -> None:
    net = worlds.dcgan()
    save_file(
        {key.replace("main", "trunk"): v.contiguous() for key, v in net.state_dict().items()}, tmp_path / "w:1.st"
    )
    with pytest.raises(FileError, match="are those of no known family; name one of stylegan3"):
        load(tmp_path / "w:1.st")
    made = load(str(tmp_path / "w:1.st"), family="dcgan", psi=0.5, **worlds.EXAMPLE)
    z, _ = worlds.latents(net)
    torch.testing.assert_close(made(z), net(0.5 * z))
    assert made.name == "w:1"


# ---------------------------------------------------------------------------------------- the networks that are shipped


@pytest.mark.parametrize("name", [*GENERATORS, "fashion-features"])
def test_a_shipped_file_is_small_and_has_its_card(name: str) -> None:
    weights = Path(likewise.__file__).parent / "weights"
    assert (weights / f"{name}.safetensors").stat().st_size < 5e6
    card = (weights / f"{name}.md").read_text(encoding="utf-8")
    for word in ("Data", "Licence", "Recipe", "Figures", "train_generators.py"):
        assert word in card


@pytest.mark.parametrize("name", GENERATORS)
def test_a_shipped_generator_draws_clothes(name: str) -> None:
    """Drawn pictures lie far nearer to each other's kind than noise does: Fréchet distance to the other generator."""
    generator, other = pretrained(name), pretrained(GENERATORS[1 - GENERATORS.index(name)])
    x = generator.draw(300, seed=2)
    assert x.shape == (300, 1, 28, 28)
    assert float(x.std(0).mean()) > 0.1  # not one picture again and again
    assert load(name).digest == generator.digest != other.digest
    noise = torch.rand(300, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    drawn, others, far = (fashion_features()(pictures).numpy() for pictures in (x, other.draw(300, seed=2), noise))
    assert float(metrics.frechet(others, drawn)) < 0.5 * float(metrics.frechet(others, far))


def test_spaces_of_a_shipped_generator() -> None:
    """Before the squashing is the logit of the pixels; features are those of the describing net."""
    generator = pretrained("fashion")
    z = torch.randn(3, generator.dim, generator=torch.Generator().manual_seed(0))
    before = generator.in_space("preactivation").function()(z)
    torch.testing.assert_close(torch.sigmoid(before), generator(z).flatten(1))
    net = fashion_features()
    torch.testing.assert_close(generator.in_space(net).function()(z), net(generator(z)))
    assert generator.in_space(net).space == "likewise-fashion-lenet"
