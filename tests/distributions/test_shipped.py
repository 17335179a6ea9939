"""The networks that come with likewise: they load, they draw clothes, and their likelihood is one."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise
from likewise.distributions.shipped import GENERATORS, NAMES, Likelihood, decoder, describer, features, shipped
from likewise.errors import InputError

WEIGHTS = Path(likewise.__file__).parent / "weights"


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_file_is_small_and_has_its_card(name: str) -> None:
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size < 5e6
    card = (WEIGHTS / f"{name}.md").read_text(encoding="utf-8")
    for word in ("Data", "Licence", "Recipe", "Figures", "train_generators.py"):
        assert word in card


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_draws_pictures(name: str) -> None:
    generator = shipped(name)
    x = generator.draw(64, seed=1)
    assert x.shape == (64, 1, 28, 28)
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert float(x.std(0).mean()) > 0.1  # not one picture again and again
    torch.testing.assert_close(x[:5], generator.draw(64, seed=1)[:5])
    assert shipped(name).digest == generator.digest


def test_two_generators_are_told_apart() -> None:
    assert shipped("fashion").digest != shipped("fashion-vae").digest


@pytest.mark.parametrize("name", GENERATORS)
def test_pictures_look_like_clothes_to_the_describing_net(name: str) -> None:
    """Drawn pictures lie far nearer to each other's kind than noise does: Fréchet distance to the other generator."""
    from likewise.distributions.metrics import frechet

    net = describer()
    other = GENERATORS[1 - GENERATORS.index(name)]
    drawn, others = (net(shipped(one).draw(300, seed=2)).numpy() for one in (name, other))
    noise = net(torch.rand(300, 1, 28, 28, generator=torch.Generator().manual_seed(0))).numpy()
    assert float(frechet(others, drawn)) < 0.5 * float(frechet(others, noise))


def test_spaces_of_a_shipped_generator() -> None:
    """Before the squashing is the logit of the pixels; features are those of the describing net."""
    generator = shipped("fashion")
    z = torch.randn(3, generator.dim, generator=torch.Generator().manual_seed(0))
    before = generator.in_space("preactivation").function()(z)
    torch.testing.assert_close(torch.sigmoid(before), generator(z).flatten(1))
    net = describer()
    torch.testing.assert_close(generator.in_space(net).function()(z), net(generator(z)))
    assert generator.in_space(net).space == "likewise-fashion-lenet"


def test_rows_do_not_depend_on_each_other() -> None:
    generator = shipped("fashion")
    z = torch.randn(4, generator.dim)
    torch.testing.assert_close(generator(z)[2:3], generator(z[2:3]), atol=1e-5, rtol=1e-4)


def test_the_likelihood_against_numerical_integration() -> None:
    """A VAE of one latent: log ∫ p(x | z) p(z) dz by quadrature; the bound lies below and, with many draws, near."""
    density = Likelihood(samples=1500)
    torch.manual_seed(0)
    density.decoder, density.encoder = decoder(1, 4).eval(), _wide_encoder()
    density.log_spread = 0.0
    x = torch.rand(2, 1, 28, 28)
    z = torch.linspace(-8, 8, 4001)[:, None]
    with torch.no_grad():
        error = (x[:, None].double() - density.decoder(z)[None].double()).flatten(2).square().sum(2)
    log_joint = -0.5 * error - 392 * math.log(2 * math.pi) - 0.5 * z[:, 0].double() ** 2 - 0.5 * math.log(2 * math.pi)
    exact = torch.logsumexp(log_joint, 1) + math.log(16 / 4000)
    np.testing.assert_allclose(density(x), exact.numpy(), atol=0.05)


def _wide_encoder() -> torch.nn.Module:
    """q(z | x) = N(0, e^0.5): anything that covers the posterior will do."""

    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[0.0, 0.5]]).expand(len(x), 2)

    return Wide()


def test_more_draws_tighten_the_bound() -> None:
    x = shipped("fashion-vae").draw(40, seed=3)
    few, many = (Likelihood(samples=s)(x).mean() for s in (1, 32))
    assert few < many


def test_clothes_are_likelier_than_noise() -> None:
    density = Likelihood(samples=4)
    noise = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert density(shipped("fashion-vae").draw(20)).min() > density(noise).max()


def test_features_describe_a_batch() -> None:
    x = torch.rand(3, 1, 28, 28)
    assert describer()(x).shape == (3, 64)
    assert features(7)(x).shape == (3, 7)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: shipped("faces"), "name: expected one of fashion, fashion-vae, got 'faces'"),
        (lambda: describer("faces"), "name: expected fashion, got 'faces'"),
        (lambda: Likelihood("fashion"), "name: expected fashion-vae"),
        (lambda: Likelihood(samples=0), "samples: expected a whole number ≥ 1, got 0"),
    ],
)
def test_wrong_names_are_refused(call, says: str) -> None:
    with pytest.raises(InputError, match=says):
        call()


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
    assert nearest_centre(describer()(x).numpy(), y) > nearest_centre(x.flatten(1).numpy(), y) + 0.05


def nearest_centre(rows: np.ndarray, y: np.ndarray) -> float:
    half = len(rows) // 2
    centres = np.stack([rows[:half][y[:half] == c].mean(0) for c in range(10)])
    guess = ((rows[half:, None] - centres) ** 2).sum(2).argmin(1)
    return float((guess == y[half:]).mean())
