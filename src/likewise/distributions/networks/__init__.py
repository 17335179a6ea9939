"""Generators of seven families in plain torch, by the keys of their public state dicts; shapes come from the weights.

Every network here maps latents (n, dim) to pictures (n, c, h, w) in [0, 1], is built of operations that have a forward
mode and a batching rule, draws no noise, and treats its rows independently. Torch is imported when one is asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.distributions.networks.network import Network

_HOMES = {
    "stylegan3": "stylegan3:StyleGAN3",
    "stylegan2": "stylegan2:StyleGAN2",
    "biggan_deep": "biggan:BigGANDeep",
    "progan": "progan:ProGAN",
    "nvae": "nvae:NVAE",
    "upsampling_dcgan": "upsampling:UpsamplingDCGAN",
    "dcgan": "decoders:DCGAN",
    "vae": "decoders:VAE",
}
FAMILIES = tuple(_HOMES)

_SIGNS = {
    "stylegan3": ("synthesis.input.freqs",),
    "stylegan2": ("synthesis.b4.const", "mapping.w_avg"),
    "biggan_deep": ("embeddings.weight", "generator.gen_z.weight_orig"),
    "progan": (r"formatLayer(\.module)?\.weight",),
    "nvae": ("top", r"groups\.0\.combine\.weight", "head.weight"),
    "upsampling_dcgan": ("l1.0.weight", "conv_blocks.0.running_mean"),
    "vae": (r"(fc3\.weight|decoder_input\.weight|decoder(\.\d+)+\.weight)",),
    "dcgan": (r"(main|gen|net|model|layers)(\.\d+)+\.weight",),
}
"""Keys, as regular expressions, that a state dict of a family has; the first family with all of them is taken."""


def recognise(keys: Iterable[str]) -> str:
    """The family whose keys these are; an InputError says which families there are where none fits."""
    known = list(keys)
    for family, signs in _SIGNS.items():
        if all(any(re.fullmatch(sign, key) for key in known) for sign in signs):
            return family
    some = ", ".join(known[:3]) + (" …" if len(known) > 3 else "")
    raise InputError(
        f"family: the keys ({some or 'none'}) are those of no known family; name one of {', '.join(FAMILIES)}, "
        "or give the generator as module:attribute"
    )


def class_of(family: str) -> type[Network]:
    """The class of a family."""
    if family not in _HOMES:
        raise InputError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
    module, _, name = _HOMES[family].partition(":")
    found: type[Network] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found
