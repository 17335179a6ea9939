"""The networks that come with likewise: they load, they draw clothes, and their likelihood is one."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise
from likewise.distributions.pretrained import GENERATORS, fashion_features, pretrained
from likewise.errors import InputError

WEIGHTS = Path(likewise.__file__).parent / "weights"


@pytest.mark.parametrize("name", [*GENERATORS, "fashion-features"])
def test_a_shipped_file_is_small_and_has_its_card(name: str) -> None:
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size < 5e6
    card = (WEIGHTS / f"{name}.md").read_text(encoding="utf-8")
    for word in ("Data", "Licence", "Recipe", "Figures", "train_generators.py"):
        assert word in card


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_draws_pictures(name: str) -> None:
    generator = pretrained(name)
    x = generator.draw(64, seed=1)
    assert x.shape == (64, 1, 28, 28)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert float(x.std(0).mean()) > 0.1  # not one picture again and again
    torch.testing.assert_close(x[:5], generator.draw(64, seed=1)[:5])
    assert pretrained(name).digest == generator.digest


def test_two_generators_are_told_apart() -> None:
    assert pretrained("fashion").digest != pretrained("fashion-vae").digest


@pytest.mark.parametrize("name", GENERATORS)
def test_pictures_look_like_clothes_to_the_describing_net(name: str) -> None:
    """Drawn pictures lie far nearer to each other's kind than noise does: Fréchet distance to the other generator."""
    from likewise.distributions.metrics import frechet

    net = fashion_features()
    other = GENERATORS[1 - GENERATORS.index(name)]
    drawn, others = (net(pretrained(one).draw(300, seed=2)).numpy() for one in (name, other))
    noise = net(torch.rand(300, 1, 28, 28, generator=torch.Generator().manual_seed(0))).numpy()
    assert float(frechet(others, drawn)) < 0.5 * float(frechet(others, noise))


def test_spaces_of_a_shipped_generator() -> None:
    """Before the squashing is the logit of the pixels; features are those of the describing net."""
    generator = pretrained("fashion")
    z = torch.randn(3, generator.dim, generator=torch.Generator().manual_seed(0))
    before = generator.in_space("preactivation").function()(z)
    torch.testing.assert_close(torch.sigmoid(before), generator(z).flatten(1))
    net = fashion_features()
    torch.testing.assert_close(generator.in_space(net).function()(z), net(generator(z)))
    assert generator.in_space(net).space == "likewise-fashion-lenet"


def test_rows_do_not_depend_on_each_other() -> None:
    generator = pretrained("fashion")
    z = torch.randn(4, generator.dim)
    torch.testing.assert_close(generator(z)[2:3], generator(z[2:3]), atol=1e-5, rtol=1e-4)


def test_features_tell_real_clothes_apart_better_than_pixels_do() -> None:
    """The rule of the nearest class centre, learnt on 1,000 test pictures, on 1,000 others."""
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed: this test needs real clothes")
    raw, labels = (
        np.frombuffer(gzip.decompress((folder / f"t10k-{what}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for what, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    x = torch.from_numpy(raw[: 2000 * 784].reshape(-1, 1, 28, 28) / np.float32(255))
    y = labels[:2000]
    assert nearest_centre(fashion_features()(x).numpy(), y) > nearest_centre(x.flatten(1).numpy(), y) + 0.05


def nearest_centre(rows: np.ndarray, y: np.ndarray) -> float:
    half = len(rows) // 2
    centres = np.stack([rows[:half][y[:half] == c].mean(0) for c in range(10)])
    guess = ((rows[half:, None] - centres) ** 2).sum(2).argmin(1)
    return float((guess == y[half:]).mean())


def test_another_name_is_refused() -> None:
    with pytest.raises(InputError, match="name: expected one of fashion, fashion-vae, got 'faces'"):
        pretrained("faces")
