"""Published weights: every kind of file, strict keys, and files that would run code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from likewise.errors import FileError, InputError
from likewise.nn import ConvNet, InceptionBN, ResNet50, named
from likewise.nn.pretrained import as_state, read_state, wheel_weights

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def state() -> State:
    return {k: v.contiguous() for k, v in ResNet50(classes=5, seed=9).state_dict().items()}


def test_weights_come_from_a_state_dict_and_from_files(tmp_path: Path, state: State) -> None:
    small = {k: v.contiguous() for k, v in ConvNet(width=8, seed=9).state_dict().items()}
    torch.save(small, tmp_path / "w.pth")
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in small.items()}}, tmp_path / "checkpoint.bin")
    save_file(small, tmp_path / "w.safetensors")
    (tmp_path / "misnamed.pt").write_bytes((tmp_path / "w.safetensors").read_bytes())
    for source in ("w.pth", "checkpoint.bin", "w.safetensors", "misnamed.pt"):
        model = named("convnet", tmp_path / source, width=8)
        assert all(torch.equal(v, small[k]) for k, v in model.state_dict().items())
        assert not model.training
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    assert named("resnet50", old).fc.out_features == 5


def test_half_precision_becomes_single_and_a_module_gives_its_own() -> None:
    assert as_state({"a": torch.ones(2, dtype=torch.float16)})["a"].dtype == torch.float32
    net = ConvNet(width=8)
    assert as_state(net).keys() == net.state_dict().keys()


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("resnet50", lambda s: {k: v for k, v in s.items() if k != "layer3.2.conv1.weight"}),
        ("resnet50", lambda s: s | {"layer5.0.conv1.weight": torch.zeros(1)}),
        ("resnet50", lambda s: s | {"conv1.weight": torch.zeros(64, 3, 3, 3)}),
        ("resnet50", lambda s: {k: v for k, v in s.items() if not k.startswith("fc")}),
        ("inception-bn", lambda s: s),
        ("efficientnet-lite0", lambda s: s),
        ("efficientnet-lite0", lambda s: dict(list(read_state(wheel_weights()).items())[:-1])),
        ("efficientnet-lite0", lambda s: read_state(wheel_weights()) | {"extra": torch.zeros(1)}),
        ("efficientnet-lite0", lambda s: read_state(wheel_weights()) | {"_fc.bias": torch.zeros(10)}),
        ("convnet", lambda s: s),
    ],
)
def test_weights_that_do_not_fit_are_refused(name: str, odd: Callable[[State], State], state: State) -> None:
    with pytest.raises(FileError, match=f"do not fit {name}: .* keys differ, the first is "):
        named(name, odd(state))


def test_inception_takes_its_published_keys() -> None:
    state = InceptionBN(classes=5, seed=3).state_dict()
    model = named("inception-bn", state)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


def test_what_holds_no_tensors_is_said(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"a": torch.tensor([float("nan")])}, tmp_path / "nan.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{no json")
    (tmp_path / "short.pth").write_bytes(b"no")
    for name, message in {
        "list.pth": "expected tensors by name",
        "nan.pth": "a contains NaN",
        "bad.safetensors": "damaged",
        "short.pth": "not only tensors|damaged",
        "none.pth": "no such file",
        ".": "is a folder",
    }.items():
        with pytest.raises(FileError, match=message):
            read_state(tmp_path / name)
    with pytest.raises(InputError, match="state: expected tensors by name"):
        as_state(7)


def test_a_hostile_pickle_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "sprung"),))

    (tmp_path / "w.pth").write_bytes(pickle.dumps(Trap()))
    torch.save({"a": Trap()}, tmp_path / "z.pth")
    for name in ("w.pth", "z.pth"):
        with pytest.raises(FileError, match=r"holds Python objects.* would run its code"):
            named("efficientnet-lite0", tmp_path / name)
    assert not (tmp_path / "sprung").exists()
