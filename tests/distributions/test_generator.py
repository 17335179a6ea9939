"""Latents: their densities and samples. Generators: any callable, its spaces, its identity, and what it refuses."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import likewise as lw
from likewise.distributions import Generator, Latent, Normal, TruncatedNormal, Uniform, spectrum
from worlds import networks

EVERY = (Normal(1), Uniform(1, -2, 0.5), TruncatedNormal(1, 0.7), TruncatedNormal(1, 2.0, scale=0.4))


PEERS = (stats.norm(), stats.uniform(-2, 2.5), stats.truncnorm(-0.7, 0.7), stats.truncnorm(-2, 2, scale=0.4))


@pytest.mark.parametrize(("latent", "peer"), list(zip(EVERY, PEERS, strict=True)), ids=range(4))
def test_density_and_sample_agree_with_scipy(latent, peer):
    z = latent.sample(4000, np.random.default_rng(0))[:, 0].astype(np.float64)
    np.testing.assert_allclose(latent.log_density(z[:, None]), peer.logpdf(z), rtol=1e-6)
    assert stats.kstest(z, peer.cdf).pvalue > 1e-3
    assert stats.kstest(z + 0.2, peer.cdf).pvalue < 1e-3  # the test can fail
    pairs = z.reshape(-1, 2)  # coordinates are independent
    np.testing.assert_allclose(replace(latent, dim=2).log_density(pairs), peer.logpdf(pairs).sum(1), rtol=1e-6)


@given(st.floats(1e-3, 30), st.floats(1e-3, 10))
def test_no_rounded_sample_lies_outside(psi, scale):
    latent = TruncatedNormal(3, psi, scale)
    z = latent.sample(200, np.random.default_rng(1))
    assert z.dtype == np.float32
    assert np.isfinite(latent.log_density(z)).all()


def test_the_seed_decides_and_latents_say_what_they_are():
    for latent in EVERY:
        assert isinstance(latent, Latent)
        one, two = (latent.sample(5, np.random.default_rng(3)) for _ in range(2))
        assert one.tobytes() == two.tobytes()
        # the first rows of a longer draw are those of a shorter one
        assert latent.sample(9, np.random.default_rng(3))[:5].tobytes() == one.tobytes()
    assert TruncatedNormal(4, 0.5).to_dict() == {"kind": "TruncatedNormal", "dim": 4, "psi": 0.5, "scale": 1.0}


class Small(nn.Module):
    """A module that ends in a Tanh, with dropout and batch statistics that evaluation must switch off."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.5), nn.Linear(9, 12))
        self.end = nn.Tanh()

    def forward(self, z):
        return self.end(self.body(z)).view(-1, 3, 2, 2)


class Conditional(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.table, self.out = nn.Embedding(3, 4), nn.Linear(4, 6)

    def forward(self, z, y):
        return self.out(z * self.table(y))


def test_pictures_come_in_batches_and_do_not_depend_on_them():
    z = Normal(4).sample(10, np.random.default_rng(0))
    whole, parts = (Generator(Small(), Normal(4), batch=b)(z) for b in (64, 3))
    assert whole.shape == (10, 3, 2, 2)
    assert not whole.requires_grad
    torch.testing.assert_close(whole, parts)


def test_preactivation_is_what_goes_into_the_last_squashing():
    generator = Generator(Small(), Normal(4), space="preactivation")
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.tanh(generator.function()(z)), generator(z).flatten(1))
    # and it is differentiable, forwards too
    _, tangent = torch.func.jvp(generator.function(), (z,), (torch.ones_like(z),))
    step = 1e-3
    central = (generator.function()(z + step) - generator.function()(z - step)) / (2 * step)
    torch.testing.assert_close(tangent, central, rtol=1e-2, atol=1e-3)


def test_spaces_and_truncation_of_ones_own():
    z, net = torch.ones(2, 4), Small()
    generator = Generator(net, Normal(4)).in_space(lambda x: x.mean((2, 3)))
    torch.testing.assert_close(generator.function()(z), generator(z).mean((2, 3)))
    net.spaces = {"style": lambda z, y: 2 * z}
    net.truncated = lambda psi: lambda z: z + psi
    generator = Generator(net, Normal(4), space="style")
    assert torch.equal(generator.function()(z), 2 * z)
    assert torch.equal(generator.in_space("pixel").truncated(0.25)(z), z + 0.25)


def test_it_can_be_sent_to_another_process():
    generator = Generator(Small(), Normal(4), space="preactivation")
    again = pickle.loads(pickle.dumps(generator))
    z = torch.ones(2, 4)
    assert torch.equal(again.function()(z), generator.function()(z))
    assert again.digest == generator.digest


def test_classes():
    generator = Generator(Conditional(), Normal(4), labels=3)
    z = np.ones((2, 4), np.float32)
    assert not torch.equal(generator(z, [0, 0]), generator(z, [1, 1]))
    assert torch.equal(generator(z, 2), generator(z, [2, 2]))
    assert generator.draw(5, label=1).shape == (5, 6)
    assert generator.function([0, 2])(torch.ones(2, 4)).shape == (2, 6)
    for wrong in (None, [0, 3], [-1, 0], [0.5, 1], [0, 1, 2]):
        with pytest.raises(lw.InputError, match=r"^y"):
            generator(z, wrong)
    with pytest.raises(lw.InputError, match=r"^y"):
        generator.function()


def test_truncation_draws_latents_to_their_centre_and_takes_the_same_latents():
    generator = Generator(lambda z: 3 * z, Uniform(2, 0, 4))
    z = np.array([[0.0, 4.0]], np.float32)
    assert torch.equal(generator.truncated(0.5)(z), torch.tensor([[3.0, 9.0]]))
    assert torch.equal(generator.truncated(1.0)(z), generator(z))
    assert Generator(Small(), Normal(4)).truncated(0.5).in_space("preactivation").psi == 0.5


def test_identity_is_weights_structure_latent_space_and_what_a_closure_holds():
    def scaled(c):
        return lambda z: c * z

    digests = [
        Generator(Small(), Normal(4)).digest,
        Generator(Small(seed=1), Normal(4)).digest,
        Generator(Small(), Uniform(4)).digest,
        Generator(Small(), Normal(4), space="preactivation").digest,
        Generator(Small(), Normal(4)).truncated(0.5).digest,
        Generator(lambda z: 2 * z, Normal(4)).digest,
        Generator(scaled(2), Normal(4)).digest,
        Generator(scaled(3), Normal(4)).digest,
    ]
    assert len(set(digests)) == len(digests)
    assert Generator(Small(), Normal(4)).digest == digests[0]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Normal(0), "dim"),
        (lambda: Normal(2.5), "dim"),
        (lambda: Uniform(2, 1, 1), "low"),
        (lambda: Uniform(2, 0, np.inf), "high"),
        (lambda: TruncatedNormal(2, 0), "psi"),
        (lambda: TruncatedNormal(2, 1, -1), "scale"),
        (lambda: Normal(2).log_density([[1, 2, 3]]), "z"),
        (lambda: Generator(3, Normal(2)), "net"),
        (lambda: Generator(lambda z: z, 2), "latent"),
        (lambda: Generator(lambda z: z, Normal(2), labels=0), "labels"),
        (lambda: Generator(lambda z: z, Normal(2), batch=0), "batch"),
        (lambda: Generator(lambda z: z, Normal(2), space=3), "space"),
        (lambda: Generator(Small(), Normal(4), space="style"), r"pixel, preactivation.*style"),
        (lambda: Generator(lambda z: z, Normal(4), space="preactivation"), "space: this generator has pixel,"),
        (lambda: Generator(Small(), Normal(4))(np.ones((2, 4)), [0, 0]), "no classes"),
        (lambda: Generator(lambda z: z, Normal(2)).truncated(-1), "psi"),
        (lambda: Generator(lambda z: z, Normal(2))(np.zeros((3, 3))), "z: expected latents"),
        (lambda: Generator(lambda z: z, Normal(2))(np.zeros(2)), "z: expected latents"),
        (lambda: Generator(lambda z: z, Normal(2))("latents"), "z: expected latents"),
        (lambda: Generator(lambda z: z, Normal(2))(np.full((1, 2), np.nan)), "z: latents contain NaN"),
        (lambda: Generator(lambda z: z / 0, Normal(2))(np.ones((1, 2))), "net: .* NaN or infinity for latent 0"),
        (lambda: Generator(lambda z: z.sum(), Normal(2))(np.ones((1, 2))), "net: expected"),
    ],
)
def test_wrong_arguments_are_named(call, name):
    with pytest.raises(lw.InputError, match=name):
        call()


def test_a_style_generator_is_measured_through_its_mapping():
    net = networks.stylegan2()
    latent = Normal(net.dim)
    z = latent.sample(3, np.random.default_rng(0))
    through = spectrum(Generator(net, latent, space="preactivation").function(), z, 4)
    assert through.method.startswith("through")
    exact = spectrum(lambda x: net.preactivation(x).flatten(1), z, 4, method="gram")
    np.testing.assert_allclose(through.values, exact.values, rtol=1e-4)
