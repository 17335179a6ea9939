"""What does this model or collection cover? Polarity sampling of any generator, and coverage of any two collections."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once, not lazily: the function must win over the module of the same name, whoever imports that first.
from likewise.distributions.compare import DistributionComparison, compare
from likewise.distributions.latents import Latent, Normal, TruncatedNormal, Uniform
from likewise.distributions.shipped import shipped

if TYPE_CHECKING:
    from likewise.core.spectra import Composite as Composite
    from likewise.core.spectra import Spectrum as Spectrum
    from likewise.core.spectra import pilot as pilot
    from likewise.core.spectra import spectrum as spectrum
    from likewise.distributions import adapters as adapters
    from likewise.distributions.bank import Bank as Bank
    from likewise.distributions.bank import Draw as Draw
    from likewise.distributions.bank import harvest as harvest
    from likewise.distributions.data import load_generator as load_generator
    from likewise.distributions.data import save_generator as save_generator
    from likewise.distributions.model import Generator as Generator
    from likewise.distributions.online import OnlineSampler as OnlineSampler
    from likewise.distributions.sweeps import Sweep as Sweep
    from likewise.distributions.sweeps import sweep as sweep

_HOMES = {
    "Bank": "likewise.distributions.bank",
    "Composite": "likewise.core.spectra",
    "Draw": "likewise.distributions.bank",
    "Generator": "likewise.distributions.model",
    "OnlineSampler": "likewise.distributions.online",
    "Spectrum": "likewise.core.spectra",
    "Sweep": "likewise.distributions.sweeps",
    "harvest": "likewise.distributions.bank",
    "load_generator": "likewise.distributions.data",
    "pilot": "likewise.core.spectra",
    "save_generator": "likewise.distributions.data",
    "spectrum": "likewise.core.spectra",
    "sweep": "likewise.distributions.sweeps",
}
_MODULES = ("adapters", "marchenko", "metrics", "paths", "toys")

__all__ = [
    "DistributionComparison",
    "Latent",
    "Normal",
    "TruncatedNormal",
    "Uniform",
    "compare",
    "shipped",
    *sorted([*_HOMES, *_MODULES]),
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"likewise.distributions.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.distributions' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
