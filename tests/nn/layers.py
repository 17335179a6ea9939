"""What the oracles of backbones are made of: plain functions on a state dict, and random weights to feed them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from likewise.errors import InputError, ShapeError

State = dict[str, torch.Tensor]


def randomised(model: torch.nn.Module, seed: int = 0) -> State:
    """Weights and statistics of a trained network's size, nowhere 0 or 1, in float64; loaded into the model, too."""
    g = torch.Generator().manual_seed(seed)
    state = {}
    for key, value in model.state_dict().items():
        if key.endswith("running_var") or (value.ndim == 1 and key.endswith(".weight")):
            state[key] = 0.5 + torch.rand(value.shape, generator=g, dtype=torch.float64)
        elif value.ndim > 1:
            state[key] = torch.randn(value.shape, generator=g, dtype=torch.float64) / value[0].numel() ** 0.5
        elif value.is_floating_point():
            state[key] = 0.2 * torch.randn(value.shape, generator=g, dtype=torch.float64)
        else:
            state[key] = value + 7
    model.double().load_state_dict(state)
    return state


def convolution(w: State, x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
    """A convolution that keeps the map, or halves it."""
    weight = w[f"{name}.weight"]
    return functional.conv2d(x, weight, w.get(f"{name}.bias"), stride=stride, padding=weight.shape[2] // 2)


def normalisation(w: State, x: torch.Tensor, name: str, eps: float = 1e-5) -> torch.Tensor:
    """(x − μ) / √(σ² + ε) γ + β."""
    mean, var, scale, shift = (
        w[f"{name}.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(var + eps) * scale + shift


class Contract:
    """What every backbone keeps, whatever it is made of: a test class of its own inherits these."""

    size = 64

    def make(self, **options: object) -> torch.nn.Module:
        raise NotImplementedError

    def pictures(self, n: int = 2, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.rand(n, 3, self.size, self.size, generator=torch.Generator().manual_seed(3), dtype=dtype)

    def test_parts_one_after_the_other_are_features(self) -> None:
        model, x = self.make(), self.pictures(dtype=torch.float32)
        with torch.no_grad():
            y = x
            for part in model.parts():
                y = part(y)
            assert torch.equal(y, model.features(x))
        assert y.shape == (2, model.dim)

    def test_parts_share_the_weights(self) -> None:
        model = self.make()
        keys = len(model.state_dict())
        inside = {id(p) for part in model.parts() for p in part.parameters()}
        outside = [n for n, p in model.named_parameters() if id(p) not in inside]
        assert all(n.split(".")[0] in ("fc", "last_linear", "classifier") for n in outside), outside
        assert len(model.state_dict()) == keys, "a view of the weights, not more of them"

    def test_fold_changes_nothing_but_speed(self) -> None:
        model, x = self.make(), self.pictures()
        randomised(model)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        folded = model.fold()
        assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in folded.modules())
        assert not any(p.requires_grad for p in folded.parameters())
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the original is left alone"
        with torch.no_grad():
            torch.testing.assert_close(folded.features(x), model.features(x), atol=1e-9, rtol=1e-9)
            assert torch.equal(folded.fold().features(x), folded.features(x))

    def test_training_mode_leaves_frozen_normalisations_alone(self) -> None:
        for frozen in (True, False):
            model = self.make(frozen_bn=frozen)
            assert not model.training
            model.train()
            norm = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
            statistics = norm.running_mean.clone()
            model(self.pictures(dtype=torch.float32)).sum().backward()
            assert torch.equal(norm.running_mean, statistics) is frozen
            assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())

    def test_random_weights_are_a_function_of_the_seed(self) -> None:
        torch.manual_seed(1)
        state = torch.get_rng_state()
        one, same, other = self.make(seed=4), self.make(seed=4), self.make(seed=5)
        assert torch.equal(torch.get_rng_state(), state), "the global generator is left as it was"
        pairs = [(k, v, same.state_dict()[k], other.state_dict()[k]) for k, v in one.state_dict().items() if v.ndim > 1]
        assert all(torch.equal(a, b) for _, a, b, _ in pairs)
        assert not any(torch.equal(a, c) for _, a, _, c in pairs)

    def test_wrong_input_is_named(self) -> None:
        with pytest.raises(ShapeError, match=r"x: expected \(b, 3, h, w\)"):
            self.make().features(torch.rand(3, 32, 32))
        with pytest.raises(InputError, match="divide by 255"):
            self.make().features(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
