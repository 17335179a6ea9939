"""Well-known generators made ready: weights, a file of weights or a module in; a `Generator` out.

Each gives pictures (n, c, h, w) in [0, 1], the latent that the family was trained with, its classes, and the spaces
"pixel", "preactivation" (before the last tanh, sigmoid or cut) and, for style generators, "style". Mapping tanh's
[−1, 1] to [0, 1] halves every singular value: the log-volume of k values is k log 2 lower for every latent alike, so
weights, ρ and samples are the same as with the original's range. ψ truncates as the family does, and composes with ρ
[Polarity C.3]: the spectra of a truncated generator are those of the truncated map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from likewise.errors import FileError, InputError, LikewiseError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from likewise.distributions.latents import Latent
    from likewise.distributions.model import Generator


class Options(TypedDict, total=False):
    """What every adapter takes: ψ, a latent instead of the family's, a space, a name, a device, a batch's size."""

    psi: float
    latent: Latent
    space: str | Callable[[Any], Any]
    name: str
    device: str | torch.device
    batch: int


def stylegan2(
    source: str | Path | Mapping[str, Tensor] | nn.Module, *, clamp: float | None = 256.0, **options: Unpack[Options]
) -> Generator:
    """StyleGAN2 from a state dict of stylegan2-ada-pytorch's layout, or from a module with its calls.

    Truncation moves the style: w̄ + ψ (w − w̄). `clamp` is where activations are cut off: the training configurations'
    256, None for networks made without.
    """
    return _styled("stylegan2", source, options, clamp=clamp)


def stylegan3(source: str | Path | Mapping[str, Tensor] | nn.Module, **options: Unpack[Options]) -> Generator:
    """StyleGAN3 (t or r) from a state dict of the official layout, or from a module with its calls; ψ as there."""
    return _styled("stylegan3", source, options)


def biggan_deep(source: str | Path | Mapping[str, Tensor], **options: Unpack[Options]) -> Generator:
    """BigGAN-deep from a state dict of pytorch-pretrained-BigGAN's layout; ψ scales z and picks the statistics."""
    return _made("biggan_deep", source, options)


def progan(source: str | Path | Mapping[str, Tensor], **options: Unpack[Options]) -> Generator:
    """A progressive GAN from a state dict of pytorch_GAN_zoo's layout; truncate by latent=TruncatedNormal(…)."""
    return _made("progan", source, options)


def nvae(source: str | Path | Mapping[str, Tensor], **options: Unpack[Options]) -> Generator:
    """A hierarchical decoder in the style of NVAE, of this project's own layout; ψ is its temperature."""
    return _made("nvae", source, options)


def vae(
    source: str | Path | Mapping[str, Tensor],
    *,
    kinds: Sequence[str] | None = None,
    strides: Sequence[int] | None = None,
    paddings: Sequence[int] | None = None,
    extras: Sequence[int] | None = None,
    slope: float | None = None,
    output: str | None = None,
    colours: int | None = None,
    **options: Unpack[Options],
) -> Generator:
    """The decoder of a VAE, linear or convolutional; what its weights do not say can be given, one entry a convolution.

    `kinds` are "up" (transposed) or "conv", `extras` output paddings, `slope` the activation's below 0, `output` the
    last squashing: "sigmoid", "tanh" or "clamp".
    """
    grid = {"kinds": kinds, "strides": strides, "paddings": paddings, "extras": extras}
    return _made("vae", source, options, **grid, slope=slope, output=output, colours=colours)


def dcgan(
    source: str | Path | Mapping[str, Tensor],
    *,
    strides: Sequence[int] | None = None,
    paddings: Sequence[int] | None = None,
    extras: Sequence[int] | None = None,
    slope: float | None = None,
    latent_first: bool | None = None,
    **options: Unpack[Options],
) -> Generator:
    """A DCGAN: transposed convolutions (main.*, gen.*), or doubled pixels and convolutions (l1, conv_blocks).

    Strides, paddings and output paddings (`extras`) of transposed convolutions follow the kernels; with strides given,
    paddings are 0 unless given, too. `latent_first` says whether z comes before the class's embedding in the other
    layout; where it is not given, the stored statistics tell.
    """
    state = _state(source)
    grid = {"strides": strides, "paddings": paddings, "extras": extras, "slope": slope}
    if "l1.0.weight" in state:
        order = {"slope": slope, "latent_first": latent_first}
        return _made("upsampling_dcgan", state, options, where=source, **order)
    settings = {key: value for key, value in grid.items() if value is not None}
    return _made("dcgan", state, options, where=source, **settings)


def onnx(
    source: str | Path,
    *,
    dim: int | None = None,
    labels: int | None = None,
    black: float = -1.0,
    white: float = 1.0,
    **options: Unpack[Options],
) -> Generator:
    """A generator in an ONNX file, a black box: z, or z and a class, in; its spectra come from finite differences.

    `black` and `white` are what the file gives for 0 and 1. `dim` and `labels` are needed where the file has no fixed
    sizes. ψ draws latents towards their centre.
    """
    from likewise.distributions.latents import Normal
    from likewise.distributions.networks.onnx import OnnxNetwork

    net = OnnxNetwork(source, dim=dim, labels=labels, black=black, white=white)
    return _generator(net, {"latent": Normal(net.dim), "name": Path(source).stem, **options})


def weights(
    source: str | Path | Mapping[str, Tensor], family: str | None = None, **options: Unpack[Options]
) -> Generator:
    """A generator from weights of any family, told by their keys where it is not named."""
    from likewise.distributions import networks

    state = _state(source)
    try:
        found = networks.recognise(state) if family is None else family
    except InputError as error:
        raise _at(source, error) from None
    return _made(found, state, options, where=source)


# ----------------------------------------------------------------------------------------------------------- the way


def _styled(family: str, source: Any, options: Options, **settings: Any) -> Generator:
    from torch import nn

    if isinstance(source, nn.Module):
        from likewise.distributions.networks.official import OfficialStyleGAN

        return _generator(OfficialStyleGAN(source), {"name": family, **options})
    return _made(family, source, options, **settings)


def _made(family: str, source: Any, options: Options, *, where: Any = None, **settings: Any) -> Generator:
    """A network of a family from a state dict or file, as a Generator."""
    from likewise.distributions.networks import class_of

    where = source if where is None else where
    try:
        net = class_of(family).from_state(_state(source), **settings)
    except InputError as error:
        raise _at(where, error) from None
    name = Path(where).stem if isinstance(where, str | Path) else family
    return _generator(net, {"name": name, **options})


def _generator(net: Any, options: Options) -> Generator:
    """The network as a Generator with its own latent, classes, spaces and truncation."""
    from likewise.distributions.model import Generator

    given: dict[str, Any] = {**options}
    unknown = sorted(given.keys() - Options.__annotations__.keys())
    if unknown:
        raise InputError(f"{unknown[0]}: not an option; there are {', '.join(Options.__annotations__)}")
    psi = given.pop("psi", 1.0)
    latent = given.pop("latent", None) or net.latent
    if latent.dim != net.dim:
        raise InputError(f"latent: expected {net.dim} dimensions, got {latent.dim}")
    own: Any = {"spaces": getattr(net, "spaces", None), "truncate": getattr(net, "truncated", None)}
    return Generator(net, latent, labels=net.labels, **own, **given).truncated(psi)


def _state(source: Any) -> dict[str, Tensor]:
    """The state dict of a file, of a module, or as given."""
    from likewise.nn.pretrained import as_state

    return as_state(source)


def _at(source: Any, error: InputError) -> LikewiseError:
    """An error about weights, as one about the file where they come from one."""
    if not isinstance(source, str | Path):
        return error
    return FileError(f"{source}: {str(error).removeprefix('state: ')}")
