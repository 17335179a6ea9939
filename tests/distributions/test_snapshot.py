"""Snapshots of official trainings: equal to what the official code gives, read without running them, or refused."""

from __future__ import annotations

import pickletools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from likewise.distributions import load
from likewise.distributions.formats.stylegan import Design
from likewise.errors import FileError, InputError
from worlds import networks, snapshots

NETS = {"stylegan2": networks.stylegan2, "stylegan2 with classes": lambda: networks.stylegan2(4)}
NETS |= {"stylegan3 t": networks.stylegan3, "stylegan3 r": lambda: networks.stylegan3(radial=True)}


@pytest.mark.parametrize("name", ["stylegan2-64", "stylegan3-32"])
@pytest.mark.parametrize("psi", [1.0, 0.6])
def test_the_official_outputs(data: Path, name: str, psi: float) -> None:
    file = data / "generators" / f"{name}.pkl"
    if not file.exists():
        pytest.skip(f"{file} is not there: this test needs the snapshots with official outputs")
    official = np.load(file.with_suffix(".npz"))
    made = load(file).truncated(psi)
    got = made.in_space("preactivation").function()(made.latents(official["z"])).numpy()
    np.testing.assert_allclose(got, official[f"x_psi{psi}"].reshape(len(got), -1), atol=1e-5)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_a_snapshot_is_its_network(tmp_path: Path, name: str, protocol: int) -> None:
    net = NETS[name]()
    (tmp_path / "network-snapshot-000100.pkl").write_bytes(snapshots.whole(net, protocol=protocol))
    made = load(tmp_path / "network-snapshot-000100.pkl", psi=0.7)
    z, y = networks.latents(net)
    assert (made.name, made.labels, made.psi) == ("network-snapshot-000100", net.labels, 0.7)
    assert torch.equal(made(z, y), net.truncated(0.7)(z, y))
    assert made.net.settings == net.settings


def test_g_ema_is_taken_unless_another_part_is_asked_for(tmp_path: Path) -> None:
    one, two = networks.stylegan2(), networks.filled(networks.stylegan2(), seed=5)
    (tmp_path / "a.pkl").write_bytes(snapshots.whole(one, two))
    z, _ = networks.latents(one)
    assert torch.equal(load(tmp_path / "a.pkl")(z), one(z))
    assert torch.equal(load(tmp_path / "a.pkl", part="G")(z), two(z))
    (tmp_path / "b.pkl").write_bytes(snapshots.snapshot(snapshots.generator(two)))  # a network by itself
    assert torch.equal(load(tmp_path / "b.pkl")(z), two(z))
    with pytest.raises(FileError, match=r"part: there is no network 'D' in it; there is G, G_ema"):
        load(tmp_path / "a.pkl", part="D")
    with pytest.raises(FileError, match="family: it holds a stylegan2, and a stylegan3 was expected"):
        load(tmp_path / "a.pkl", family="stylegan3")


@pytest.mark.parametrize(
    "other",
    [
        {"cutoff": 3.0}, {"scale": 0.5}, {"clamp": None}, {"clamp": 1.0}, {"upsampling": 4},
    ],
)  # fmt: skip
def test_what_weights_do_not_say_is_read_from_the_snapshot(
    tmp_path: Path, other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A StyleGAN3 of another design: loaded as it is, and its images are others."""
    plain = networks.stylegan3()
    design = plain.design._replace(**other)
    settings = {**plain.settings, **design._asdict()}
    state = plain.state_dict()
    net = type(plain).from_state(state, **settings)
    (tmp_path / "a.pkl").write_bytes(snapshots.whole(net))
    made, (z, _) = load(tmp_path / "a.pkl"), networks.latents(net)
    assert made.net.settings == settings
    assert torch.equal(made.net.preactivation(z), net.preactivation(z))
    if other != {"clamp": None}:  # nothing reaches 256 here
        assert not torch.allclose(net.preactivation(z), plain.preactivation(z), rtol=1e-3)
    with pytest.raises(
        InputError, match="clamp: the weights of a stylegan3 do not say clamp, cutoff, scale, upsampling"
    ):
        load(state)
    assert Design._fields == ("clamp", "cutoff", "scale", "upsampling", "margin")


def test_a_rate_of_its_own_and_layers_that_differ(tmp_path: Path) -> None:
    net = networks.stylegan2()
    slow = type(net).from_state(net.state_dict(), **{**net.settings, "rate": 0.02})
    (tmp_path / "a.pkl").write_bytes(snapshots.whole(slow))
    z, _ = networks.latents(net)
    assert torch.equal(load(tmp_path / "a.pkl")(z), slow(z))
    slow.get_submodule("synthesis.b8.conv0").clamp = 7.0  # type: ignore[assignment]
    (tmp_path / "b.pkl").write_bytes(snapshots.whole(slow))
    with pytest.raises(FileError, match="its layers have 2 values of conv_clamp"):
        load(tmp_path / "b.pkl")


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ("synthesis.b8", {"architecture": "resnet"}, "synthesis.b8 has architecture = 'resnet', and only 'skip'"),
        ("synthesis.b8.conv1", {"activation": "relu"}, "has activation = 'relu', and only 'lrelu' is known"),
        ("synthesis.b8.conv1", {"act_gain": 1.0}, "has act_gain = 1.0"),
        ("synthesis.b4.conv1", {"padding": 0}, "has padding = 0"),
        ("mapping.fc1", {"bias_gain": 0.5}, "mapping.fc1 has weight_gain"),
        ("synthesis.b4.torgb", {"conv_clamp": None}, "its layers have 2 values of conv_clamp"),
        ("synthesis.b4.conv1.affine", {"activation": "relu"}, "and only 'linear' is known"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, path: str, change: dict[str, Any], words: str) -> None:
    made = snapshots.generator(networks.stylegan2())
    part: Any = made
    for name in path.split("."):
        part = part.meta["state"]["_modules"][name]
    part.meta["state"].update(change)
    (tmp_path / "a.pkl").write_bytes(snapshots.snapshot({"G_ema": made}))
    with pytest.raises(FileError, match=words):
        load(tmp_path / "a.pkl")
    for name in change:
        del part.meta["state"][name]
    (tmp_path / "a.pkl").write_bytes(snapshots.snapshot({"G_ema": made}))
    with pytest.raises(FileError, match=f"has no {next(iter(change))}; only the official"):
        load(tmp_path / "a.pkl")


def test_grids_that_do_not_follow_from_the_design_are_refused(tmp_path: Path) -> None:
    net = networks.stylegan3()
    net.get_submodule("synthesis.L1_36_6").pad = (3, 4)  # type: ignore[assignment]
    (tmp_path / "a.pkl").write_bytes(snapshots.whole(net))
    with pytest.raises(FileError, match=r"L1_36_6 has padding = \[3, 4, 3, 4\], and only"):
        load(tmp_path / "a.pkl")


# ------------------------------------------------------------------------------------------------------ hostile files


def refused(tmp_path: Path, data: bytes) -> str:
    file = tmp_path / "evil.pkl"
    file.write_bytes(data)
    with pytest.raises(FileError) as caught:
        load(file)
    words = str(caught.value)
    assert words.startswith(f"{file}: ")
    assert "\n" not in words
    assert len(words) < len(str(file)) + 300
    return words.removeprefix(f"{file}: ")


DANGEROUS = (
    "os system", "posix system", "nt system", "subprocess Popen", "builtins eval", "builtins exec", "builtins getattr",
    "builtins __import__", "builtins open", "__builtin__ eval", "importlib import_module", "pickle loads",
    "_pickle loads", "torch load", "torch.load load", "numpy load", "shutil rmtree", "socket socket", "sys exit",
    "operator attrgetter", "functools partial", "types FunctionType", "types CodeType", "runpy run_path", "pty spawn",
    "copyreg _reconstructor", "collections namedtuple", "numpy.f2py.crackfortran myeval", "torch.hub load",
    "torch.storage _load_from_bytes.__globals__", "torch._utils _rebuild_tensor", "torch.nn.modules.module.Module.x y",
    "torch.serialization load", "webbrowser open", "asyncio.unix_events _UnixSubprocessTransport",
    "torch_utils.persistence _src_to_module", "dnnlib.util call_func_by_name", "torch.utils.cpp_extension load",
)  # fmt: skip


@pytest.mark.parametrize("name", DANGEROUS)
@pytest.mark.parametrize("stack", [False, True])
def test_a_dangerous_name_is_told_and_nothing_runs(tmp_path: Path, name: str, stack: bool) -> None:
    module, attribute = name.split(" ")
    target = tmp_path / "ran"
    named = f"c{module}\n{attribute}\n".encode()
    if stack:
        named = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, attribute)) + b"\x93"
    argument = b"\x8c" + bytes([len(str(target)) + 6]) + f"touch {target}".encode()
    assert "names" in refused(tmp_path, b"\x80\x04" + named + argument + b"\x85R.")
    assert not target.exists()


def op(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts) + b"."


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (op(b"(cos\nsystem\nX\x01\x00\x00\x00ao"), "names 'os.system'"),
        (op(b"(X\x01\x00\x00\x00aios\nsystem\n"), "uses INST"),
        (op(b"(ctorch\nSize\nX\x01\x00\x00\x00ao"), "uses OBJ"),
        (op(b"\x82\x01"), "uses EXT1"),
        (op(b"ctorch\nSize\n)}\x92"), "uses NEWOBJ_EX"),
        (op(b"K\x01)R"), "asks to call what is no name"),
        (op(b"ctorch\nSize\n)R)R"), "asks to call what is no name"),
        (op(b"]\x94h\x00a"), "got list"),
        (op(b"}\x94X\x01\x00\x00\x00ah\x00s"), "there is no network"),
        (op(b"}(K\x01K\x02K\x03u"), "damaged"),
        (op(b"}((tK\x01u"), "has a table by what is no text"),
        (op(b"h\x07"), "damaged"),
        (op(b"r\xff\xff\xff\x7f"), "damaged"),
        (op(b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f"), "damaged"),
        (b"\x80\x04", "damaged"),
        (b"\x80\x04}", "damaged"),
        (op(b"cdnnlib.tflib.network\nNetwork\n"), "convert it with legacy.py"),
        (op(b"\x8a\xff" + b"\xff" * 255), "got int"),
        (op(b"(" * 5000 + b"t" * 5000), "got tuple"),
        (op(b"}" + b"(" * 200_000 + b"t" * 200_000 + b"K\x01s"), "has a table by what is no text"),
    ],
)
def test_what_snapshots_do_not_do_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    assert words in refused(tmp_path, data)


class Odd:
    """A tensor that says more than it holds."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return torch._utils._rebuild_tensor_v2, self.args


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        ((2**40,), (0,), 0), ((2**20, 2**20), (0, 0), 0), ((5,), (1,), 0), ((4,), (1,), 1), ((-1,), (1,), 0),
        ((4,), (-1,), 3), ((2, 2), (1,), 0), ((2**62, 4), (1, 1), 0), ((4,), (2**62,), 0), ((True,), (1,), 0),
        ((4.0,), (1,), 0), ((1,) * 65, (1,) * 65, 0), ((8,), (0,), 0),
    ],
)  # fmt: skip
def test_a_tensor_is_not_larger_than_its_numbers(
    tmp_path: Path, size: tuple[Any, ...], stride: tuple[Any, ...], offset: int
) -> None:
    made = snapshots.generator(networks.stylegan2())
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.zeros(4).untyped_storage(), dtype=torch.float32, _internal=True
    )
    made.meta["state"]["_buffers"]["w"] = Odd(storage, offset, size, stride, False, {})
    words = refused(tmp_path, snapshots.snapshot({"G_ema": made}))
    assert "larger than its numbers" in words or "damaged" in words


def test_modules_in_a_circle_or_a_million_times_the_same(tmp_path: Path) -> None:
    assert "expected a network" in refused(tmp_path, snapshots.snapshot({"G_ema": nn.Softmax(1)}))
    part = snapshots.record(nn.Module(), "Part", {}, {})
    for _ in range(14):
        part = snapshots.record(nn.Module(), "Part", {}, {"a": part, "b": part, "c": part})
    assert "too deeply, or in a circle" in refused(tmp_path, snapshots.snapshot({"G_ema": part}))
    for _ in range(20):
        part = snapshots.record(nn.Module(), "Part", {}, {"a": part})
    assert "too deeply, or in a circle" in refused(tmp_path, snapshots.snapshot({"G_ema": part}))
    # a circle that pickle cannot write: the table of modules holds the network itself
    name = b"ctorch_utils.persistence\n_reconstruct_persistent_obj\n"
    text = lambda word: b"\x8c" + bytes([len(word)]) + word  # noqa: E731
    inner = b"}(" + text(b"_parameters") + b"}" + text(b"_buffers") + b"}" + text(b"_modules") + b"}\x94u"
    body = name + b"}(" + text(b"class_name") + text(b"G") + text(b"state") + inner + b"u\x85R\x94"
    circle = b"}\x94(" + text(b"G_ema") + body + b"u0h\x01" + text(b"x") + b"h\x02s0h\x00"
    assert "uses POP" in refused(tmp_path, op(circle))
    circle = b"](" + body + b"h\x00" + text(b"x") + b"h\x01se"
    assert "got list" in refused(tmp_path, op(circle))
    circle = (
        b"}(" + text(b"other") + body + text(b"table") + b"h\x00" + text(b"x") + b"h\x01s" + text(b"G_ema") + b"h\x01u"
    )
    assert "too deeply, or in a circle" in refused(tmp_path, op(circle))


def test_an_array_in_a_snapshot_is_not_larger_than_its_bytes_and_holds_numbers_only(tmp_path: Path) -> None:
    made = snapshots.generator(networks.stylegan3())
    part = made.meta["state"]["_modules"]["synthesis"].meta["state"]["_modules"]["input"].meta["state"]
    part["bandwidth"] = np.array(["os"], dtype=object)
    assert "expected numbers in an array" in refused(tmp_path, snapshots.snapshot({"G_ema": made}))
    part["bandwidth"] = "two"
    refused(tmp_path, snapshots.snapshot({"G_ema": made}))


@pytest.mark.parametrize(("old", "new"), [("L0_36_6", "L0_99999999_6"), ("L0_36_6", "L0_-36_6")])
def test_a_grid_that_would_take_all_memory(tmp_path: Path, old: str, new: str) -> None:
    net = networks.stylegan3()
    synthesis: Any = net.synthesis
    synthesis._modules = {new if k == old else k: v for k, v in synthesis._modules.items()}
    synthesis.names[0] = new
    refused(tmp_path, snapshots.whole(net))
    with pytest.raises(InputError, match="upsampling: expected a whole number from 1 to 16"):
        load(networks.stylegan3().state_dict(), **{**networks.stylegan3().settings, "upsampling": 10**9})


def test_numbers_that_are_cut_off_or_not_finite(tmp_path: Path) -> None:
    data = bytearray(snapshots.whole(networks.stylegan2()))
    places = [int(place or 0) for code, arg, place in pickletools.genops(bytes(data)) if code.name == "BINBYTES"]
    data[places[-1] + 5 + 60] ^= 0xFF
    refused(tmp_path, bytes(data))
    net = networks.stylegan2()
    net.get_submodule("mapping").w_avg[0] = float("nan")  # type: ignore[index]
    assert "NaN" in refused(tmp_path, snapshots.whole(net))


def test_random_edits_are_refused_or_read_and_run_nothing(tmp_path: Path) -> None:
    whole = snapshots.whole(networks.stylegan2())
    rng, file = np.random.default_rng(0), tmp_path / "a.pkl"
    seen: list[str] = []
    sys.addaudithook(
        lambda event, _: seen.append(event) if event in ("pickle.find_class", "subprocess.Popen") else None
    )
    kinds = {"read": 0, "refused": 0}
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        file.write_bytes(bytes(data[: int(rng.integers(len(data)))] if rng.random() < 0.2 else data))
        try:
            load(file)
            kinds["read"] += 1
        except FileError:
            kinds["refused"] += 1
    assert not seen
    assert min(kinds.values()) > 5
