"""InceptionV3 of FID: the published layout, and what torch-fidelity gives under weights that anybody can make."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from likewise.nn.inception_v3 import InceptionV3, tensorflow_resize


def made_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights from the keys' checksums."""
    state = {}
    for key, value in model.state_dict().items():
        draw, shape = np.random.default_rng(zlib.crc32(key.encode())), tuple(value.shape)
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(0)
            continue
        if key.endswith("running_var"):
            array = draw.uniform(0.5, 1.5, shape)
        elif key.endswith(("running_mean", "bias")):
            array = 0.1 * draw.normal(size=shape)
        elif key.endswith("bn.weight"):
            array = draw.uniform(0.8, 1.2, shape)
        else:
            array = draw.normal(size=shape) * np.sqrt(2 / np.prod(shape[1:]))
        state[key] = torch.from_numpy(array.astype(np.float32))
    return state


def test_what_torch_fidelity_gives(data: Path) -> None:
    file = data / "weights" / "inception-parity.npz"
    if not file.exists():
        pytest.skip(f"{file} is not there: this test needs outputs of torch-fidelity")
    theirs = np.load(file)
    model = InceptionV3().eval()
    assert {k: " ".join(map(str, v.shape)) for k, v in model.state_dict().items()} == dict(
        zip(theirs["keys"], theirs["shapes"], strict=True)
    )
    model.load_state_dict(made_weights(model))
    with torch.no_grad():
        taps = model.taps(torch.from_numpy(theirs["images"]).float() / 255)
    for name in ("192", "768", "2048", "logits"):
        wanted = theirs["logits" if name == "logits" else f"f{name}"]
        np.testing.assert_allclose(taps[name].numpy(), wanted, atol=1e-4 * np.abs(wanted).max(), rtol=1e-4)


def test_the_published_layout() -> None:
    state = InceptionV3().state_dict()
    assert len(state) == 94 * 6 + 2
    assert sum(v.numel() for k, v in state.items() if "running" not in k and "tracked" not in k) == 23_850_960
    assert state["Mixed_7c.branch3x3dbl_3b.conv.weight"].shape == (384, 384, 3, 1)
    assert state["Mixed_6c.branch7x7dbl_2.conv.weight"].shape == (160, 160, 7, 1)
    assert state["Mixed_7a.branch7x7x3_4.conv.weight"].shape == (192, 192, 3, 3)


@pytest.mark.parametrize("size", [(7, 5), (40, 300), (40, 60)])
def test_tensorflows_resizing_by_loops(size: tuple[int, int]) -> None:
    x = torch.rand(1, 2, *size, dtype=torch.float64)
    got = tensorflow_resize(x, 11)
    for i in (0, 4, 10):
        for j in (0, 7, 10):
            (a, u), (b, v) = (divmod(n * s / 11, 1) for n, s in ((i, size[0]), (j, size[1])))
            a, b = int(a), int(b)
            c, d = min(a + 1, size[0] - 1), min(b + 1, size[1] - 1)
            top, bottom = (x[0, :, r, b] * (1 - v) + x[0, :, r, d] * v for r in (a, c))
            torch.testing.assert_close(got[0, :, i, j], top * (1 - u) + bottom * u)


def test_one_plane_and_derivatives() -> None:
    model = InceptionV3().eval()
    x = torch.rand(1, 1, 32, 32, requires_grad=True)
    y = model(x)
    y.sum().backward()
    assert x.grad is not None
    assert float(x.grad.abs().max()) > 0
    other = InceptionV3(resize="torch").eval()
    torch.testing.assert_close(model._pixels(x), model._pixels(x.expand(-1, 3, -1, -1)))
    assert other.name != model.name
    direct = 2 * functional.interpolate(x, (299, 299), mode="bilinear", align_corners=False) - 1
    torch.testing.assert_close(other._pixels(x), direct.expand(-1, 3, -1, -1))
