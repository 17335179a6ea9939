"""load_generator: module:attribute, programs, checkpoints, weights, ONNX; every refusal in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from likewise.distributions import Generator, Normal, TruncatedNormal, Uniform, adapters, load_generator
from likewise.distributions.data import load_object, save_generator
from likewise.errors import FileError, InputError
from likewise.store import checkpoint
from worlds import networks as worlds

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


@pytest.mark.parametrize("attribute", ["ready", "make", "Holder.inside"])
def test_a_generator_by_module_and_attribute(program: str, attribute: str) -> None:
    before = list(sys.path)
    made = load_generator(f"{program}:{attribute}")
    assert isinstance(made, Generator)
    assert made.name == "ready"
    assert sys.path == before


@pytest.mark.parametrize("attribute", ["declared", "make_net"])
def test_a_network_that_declares_its_latent(program: str, attribute: str) -> None:
    made = load_generator(f"{program}:{attribute}")
    assert made.dim == 3
    assert made.name == f"{program}:{attribute}"
    assert made.draw(2).shape == (2, 12)


def test_a_program_elsewhere(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path / "deep")
    file = tmp_path / f"{program}.py"
    assert load_generator(f"{file}:ready").name == "ready"
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
        load_generator(spec.format(program))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_that_does_not_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_written_program.py").write_text("def make(:\n")
    (tmp_path / "needy_program.py").write_text("import a_package_that_nobody_has\n")
    for name, words in (("half_written_program", "SyntaxError"), ("needy_program", "needs a_package_that_nobody_has")):
        for spec in (f"{name}:make", f"{name}.py:make"):
            with pytest.raises(InputError, match=words) as caught:
                load_generator(spec)
            assert "\n" not in str(caught.value)
            assert name not in sys.modules
    (tmp_path / "json.py").write_text("make = None\n")
    with pytest.raises(InputError, match="a module called json is loaded already; rename the file"):
        load_generator("json.py:make")


def test_objects_are_named_like_generators(program: str) -> None:
    assert load_object("math:pi") == pytest.approx(3.14159, abs=1e-5)
    for bad in ("", "math", "math:", ":pi", "math:3"):
        with pytest.raises(InputError, match="expected module:attribute"):
            load_object(bad)


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", list(worlds.ALL), ids=lambda name: name.replace(" ", "-"))
def test_save_and_load_of_every_family(tmp_path: Path, name: str) -> None:
    net = worlds.ALL[name]()
    psi = 1.0 if net.family == "progan" else 0.5
    made = adapters.weights(net.state_dict(), psi=psi, name="mine")
    save_generator(made, tmp_path / "g.safetensors")
    again = load_generator(tmp_path / "g.safetensors")
    assert (again.name, again.psi, again.latent) == ("mine", psi, made.latent)
    assert again.digest == made.digest
    z, y = worlds.latents(net)
    assert torch.equal(again(z, y), made(z, y))
    first = (tmp_path / "g.safetensors").read_bytes()
    save_generator(again, tmp_path / "h.safetensors")
    assert (tmp_path / "h.safetensors").read_bytes() == first


def test_what_is_given_to_an_adapter_is_saved_too(tmp_path: Path) -> None:
    body = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(4, 3, 5), torch.nn.ReLU(), torch.nn.ConvTranspose2d(3, 1, 7, 3, 2)
    )
    state = {f"main.{key}": value for key, value in body.state_dict().items()}
    for latent in (Normal(4), Uniform(4, -2, 3), TruncatedNormal(4, 1.5)):
        made = adapters.dcgan(state, strides=[1, 3], paddings=[0, 2], slope=0.1, latent=latent)
        save_generator(made, tmp_path / "g.safetensors")
        again = load_generator(tmp_path / "g.safetensors")
        assert again.latent == latent
        assert again.digest == made.digest


def test_only_known_families_are_saved(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="of no known family, so it cannot be saved"):
        save_generator(Generator(torch.nn.Linear(2, 2), Normal(2)), tmp_path / "g.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_damaged_and_foreign_checkpoints(tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    save_generator(adapters.vae(worlds.vae().state_dict()), file)
    arrays, whole = checkpoint.read(file)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    (tmp_path / "flipped.safetensors").write_bytes(data)
    with pytest.raises(FileError, match="do not match its checksum"):
        load_generator(tmp_path / "flipped.safetensors")
    about = whole["header"]
    broken = {
        "class": ({**whole, "class": "sets.Nothing"}, "is not registered"),
        "format": ({**whole, "format": 99}, "is of format 99"),
        "family": ({**whole, "header": {**about, "family": "os"}}, "family: expected one of"),
        "settings": ({**whole, "header": {**about, "settings": {"exec": 1}}}, "not the weights of a vae"),
        "latent": ({**whole, "header": {**about, "latent": {"kind": "Normal", "dim": -1}}}, "dim: expected"),
        "kind": ({**whole, "header": {**about, "latent": {"kind": "Odd"}}}, "does not hold a generator"),
        "empty": ({**whole, "header": {}}, "does not hold a generator"),
    }
    for name, (header, words) in broken.items():
        path = tmp_path / f"{name}.safetensors"
        checkpoint.write(path, arrays, header)
        with pytest.raises(FileError) as caught:
            load_generator(path)
        assert words in str(caught.value), name
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="the file holds a vae, got 'dcgan'"):
        load_generator(file, family="dcgan")


def test_weights_by_their_keys_or_by_a_named_family(tmp_path: Path) -> None:
    net = worlds.dcgan()
    state = {key.replace("main", "trunk"): value.contiguous() for key, value in net.state_dict().items()}
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(FileError, match="are those of no known family; name one of stylegan3"):
        load_generator(tmp_path / "w.safetensors")
    made = load_generator(str(tmp_path / "w.safetensors"), family="dcgan", psi=0.5)
    z, _ = worlds.latents(net)
    torch.testing.assert_close(made(z), net(0.5 * z))
    with pytest.raises(FileError, match="family: expected one of"):
        load_generator(tmp_path / "w.safetensors", family="gan")
    torch.save(net.state_dict(), tmp_path / "odd:name.pth")
    assert load_generator(tmp_path / "odd:name.pth").name == "odd:name"


def test_the_real_generators_by_their_files(data: Path) -> None:
    made = load_generator(data / "generators" / "dcgan_mnist_z64.pth")
    assert (made.dim, made.labels, made.net.family) == (64, None, "dcgan")
    made = load_generator(data / "generators" / "cwgan_mnist_z10.pth")
    assert (made.dim, made.labels, made.net.family) == (10, 10, "upsampling_dcgan")


def test_nothing_heavy_is_imported_by_the_modules_themselves() -> None:
    import subprocess

    code = "import sys, likewise.distributions.adapters, likewise.distributions.data, likewise.distributions.networks; "
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'sklearn', 'matplotlib', 'onnxruntime')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
