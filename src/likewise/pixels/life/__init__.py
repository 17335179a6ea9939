"""LIFE's losses: epipolar distance, adaptive cycle consistency and bidirectional transformations.

The paper is "LIFE: Lighting Invariant Flow Estimation" (arXiv 2104.03097). Flows are (b, h, w, 2) in pixels, x then y;
masks (b, h, w). In the paper's Eq. 1–3 a flow f is the position that a pixel goes to; here it is the displacement, and
the position is p + f[p]. Where the text is silent, docs/errata.md says what is done and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.errors import InputError, ShapeError
from likewise.pixels.geometry import Size, Warp, carried, check_fundamental, follow, grid, inside

Flows = Tensor | Sequence[Tensor]
"""A flow (b, h, w, 2), or one for each iteration of the network."""

ALPHA, BETA = 3.0, 0.05
"""The cycle's tolerance max(α, β‖f‖), in pixels and as a share of the displacement."""
EPS = 1e-3
"""The least norm of an epipolar line, as a share of the terms it is the sum of: felt within about EPS · ‖p‖ px of the
epipole, where lines lose their direction."""
RESIDUAL = 0.05
"""Pixels where the inverse of a warp misses by more than this (px) teach nothing."""


class Truth(NamedTuple):
    """What BiT asks of the network: both flows between B and B′ = T(B), and where they are known."""

    there: Float[Tensor, "b h w 2"]
    back: Float[Tensor, "b h2 w2 2"]
    there_valid: Bool[Tensor, "b h w"]
    back_valid: Bool[Tensor, "b h2 w2"]


class Weights(NamedTuple):
    """The share of each loss in the joint one; the paper gives none, these are of the recipe in docs/pixels.md."""

    sed: float = 0.5
    bit: float = 1.0
    cycle: float = 0.1


class Life(NamedTuple):
    """The joint loss and its parts, before weighting; a part that was not asked for is None."""

    total: Tensor
    sed: Tensor | None
    bit: Tensor | None
    cycle: Tensor | None


def sed(
    x: Float[Tensor, "*n 2"],
    y: Float[Tensor, "*n 2"],
    F: Float[Tensor, "*m 3 3"],
    *,
    eps: float = EPS,
    cap: float | None = None,
) -> Float[Tensor, "*n"]:
    """Symmetric epipolar distance of the matches x ↔ y, in pixels [LIFE Eq. 1].

    SED = d(y, F x) + d(x, Fᵀ y): the distance of each point to the other's epipolar line.

    Parameters
    ----------
    x, y : Tensor (…, 2)
        Pixels in the first and second image, x then y.
    F : Tensor (3, 3) or (…, 3, 3)
        Fundamental matrix, yᵀ F x = 0, one for all or one for each of the first axes; its scale does not matter.
    eps : float
        Bounds the norm of a line from below, as a share of its terms: near the epipole lines lose their direction.
    cap : float, optional
        Bounds the result from above (and its gradient is 0 there).

    Returns
    -------
    Tensor (…)
        The distances.

    Raises
    ------
    InputError, ShapeError
        Where F is not of rank 2, or shapes do not fit.

    Examples
    --------
    >>> import torch
    >>> import likewise as lw
    >>> F = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])            # a camera that moved sideways
    >>> lw.pixels.sed(torch.tensor([[5.0, 3.0]]), torch.tensor([[9.0, 4.0]]), F).round().tolist()
    [2.0]
    """
    check_fundamental(F)
    if x.shape != y.shape or x.shape[-1:] != (2,) or x.shape[: F.ndim - 2] != F.shape[:-2]:
        got = f"{tuple(x.shape)}, {tuple(y.shape)} and {tuple(F.shape)}"
        raise ShapeError(f"x, y, F: expected (…, 2) twice and one F for all or one each of the first axes, got {got}")
    k, F = F.ndim - 2, (F / F.detach().abs().amax(dim=(-1, -2), keepdim=True)).to(x)
    p, q = _homogeneous(x, k), _homogeneous(y, k)
    line = F @ p
    # |yᵀ F x| (1/‖(F x)₁₂‖ + 1/‖(Fᵀ y)₁₂‖)
    d = (line * q).sum(dim=-2).abs() * (1.0 / _norm(line, F, p, eps) + 1.0 / _norm(F.mT @ q, F.mT, q, eps))
    d = d.reshape(x.shape[:-1])
    return d if cap is None else d.clamp(max=cap)


def soft(d: Tensor, scale: float | None) -> Tensor:
    """s·log(1 + d/s): d for small distances, slow for large ones, never without a gradient; `scale=None` is d."""
    return d if scale is None else scale * torch.log1p(d / scale)


def sed_loss(
    flow: Float[Tensor, "b h w 2"],
    F: Float[Tensor, "b 3 3"],
    *,
    valid: Bool[Tensor, "b h w"] | None = None,
    scale: float | None = 5.0,
    eps: float = EPS,
    cap: float | None = None,
) -> Float[Tensor, ""]:
    """Mean of soft(SED(p, p + f[p], F)) over the valid pixels of a flow a→b [LIFE Eq. 2]; all masked is 0."""
    _check(flow, "flow")
    if F.shape != (len(flow), 3, 3):
        raise ShapeError(f"F: expected one for each flow, ({len(flow)}, 3, 3), got {tuple(F.shape)}")
    flow = _cleaned(flow, valid)
    x = grid(*flow.shape[1:3], like=flow).expand_as(flow)
    return masked_mean(soft(sed(x, x + flow, F, eps=eps, cap=cap), scale), valid)


def cycle_loss(
    forward: Float[Tensor, "b h w 2"],
    backward: Float[Tensor, "b h2 w2 2"],
    *,
    mode: str = "adaptive",
    alpha: float = ALPHA,
    beta: float = BETA,
    valid: Bool[Tensor, "b h w"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, ""]:
    """Mean of d(p) = ‖f[p] + g[p + f[p]]‖, there and back again, over the pixels that are kept [LIFE §3.1].

    Parameters
    ----------
    forward, backward : Tensor (b, h, w, 2)
        The flows a→b and b→a.
    mode : {"adaptive", "full"}
        Kept are pixels that land inside the other frame; under "adaptive" of these only where d ≤ max(α, β‖f[p]‖): what
        misses by more is taken for occluded. "full" is the ablation.
    alpha, beta : float
        The tolerance, in pixels and as a share of the displacement's length.
    valid : Tensor (b, h, w), optional
        Which pixels of a count.
    scale : float, optional
        Distances beyond it grow slowly (`soft`).

    Returns
    -------
    Tensor ()
        The mean; 0 where nothing is kept.

    Raises
    ------
    InputError, ShapeError
        Where the mode is unknown, or a flow has another shape.

    Examples
    --------
    >>> import torch
    >>> import likewise as lw
    >>> flow = torch.full((1, 8, 8, 2), 1.0)
    >>> float(lw.pixels.cycle_loss(flow, -flow)), float(lw.pixels.cycle_loss(flow, 0 * flow))
    (0.0, 1.4142135381698608)
    """
    if mode not in ("adaptive", "full"):
        raise InputError(f"mode: expected 'adaptive' or 'full', got {mode!r}")
    forward = _cleaned(forward, valid)
    d, kept = cycle(forward, backward)
    if mode == "adaptive":
        kept = kept & (d <= (beta * torch.linalg.vector_norm(forward, dim=-1)).clamp(min=alpha))
    return masked_mean(soft(d, scale), _both(kept, valid))


def cycle(
    forward: Float[Tensor, "b h w 2"], backward: Float[Tensor, "b h2 w2 2"]
) -> tuple[Float[Tensor, "b h w"], Bool[Tensor, "b h w"]]:
    """d(p) = ‖p + f[p] + g[p + f[p]] − p‖ in pixels, and where p + f[p] lies inside the other frame."""
    _check(forward, "forward")
    _check(backward, "backward")
    landed = follow(forward)
    d = torch.linalg.vector_norm(forward + carried(backward, landed), dim=-1)
    return d, inside(landed, *backward.shape[1:3])


def bit_truth(
    warp: Warp,
    size: Size,
    other: Size | None = None,
    *,
    like: Tensor | None = None,
    residual: float = RESIDUAL,
    stride: int = 1,
    centre: float = 0.0,
) -> Truth:
    """The flows B→B′ and B′→B of B′ = T(B), for frames of `size` and `other` (h, w); made once for all iterations.

    Known is a pixel that lands inside the other frame; on the way there, where the inverse misses by ≤ `residual` px.
    Of cells (place i at pixel `stride` · i + `centre`) sizes and flows are in cells.
    """
    other = other or size
    start, end = grid(*size, like=warp.like)[None], grid(*other, like=warp.like)[None]
    like = warp.like if like is None else like
    with torch.no_grad():
        goals, missed = warp.forward(stride * start + centre)
        there, back = ((p - centre) / stride for p in (goals, warp.backward(stride * end + centre)))
        known = inside(there, *other) & (missed <= residual)
        return Truth((there - start).to(like), (back - end).to(like), known, inside(back, *size))


def bit_loss(
    there: Float[Tensor, "b h w 2"],
    back: Float[Tensor, "b h2 w2 2"] | None,
    warp: Warp | Truth,
    *,
    one_way: bool = False,
    scale: float | None = 4.0,
    residual: float = RESIDUAL,
    valid: Bool[Tensor, "b h w"] | None = None,
) -> Float[Tensor, ""]:
    """Bidirectional transformation loss [LIFE Eq. 3]: ‖f_B→B′(p) − T(p)‖ + ‖f_B′→B(p′) − T⁻¹(p′)‖, each a mean.

    Parameters
    ----------
    there, back : Tensor (b, h, w, 2)
        The flows B→B′ and B′→B.
    warp : Warp or Truth
        T with B′ = T(B), or its `bit_truth`, made once for all iterations.
    one_way : bool
        Only B→B′, which is T(B′B) of Tab. 6.
    scale : float, optional
        Distances beyond it grow slowly (`soft`).
    residual : float
        Pixels where the inverse of T misses by more than this (px) count nothing, nor do those out of the frame.
    valid : Tensor (b, h, w), optional
        Which pixels of B count.

    Returns
    -------
    Tensor ()
        The loss.

    Raises
    ------
    InputError, ShapeError
        Where the flow back is missing, or a flow has another shape than its warp.

    Examples
    --------
    >>> import torch
    >>> import likewise as lw
    >>> from likewise.pixels.geometry import Affine
    >>> shift = Affine(torch.tensor([[[1.0, 0, -2], [0, 1, 0]]]))              # B′ is B moved by 2 px
    >>> there = torch.tensor([2.0, 0]).expand(1, 8, 8, 2)
    >>> float(lw.pixels.bit_loss(there, -there, shift))
    0.0
    """
    _check(there, "there")
    if back is None and not one_way:
        raise InputError("back: expected the flow B′→B, got None; give it or one_way=True")
    truth = warp if isinstance(warp, Truth) else _truth(there, back, warp, residual)
    loss = _endpoint(there, truth.there, _both(truth.there_valid, valid), scale)
    if one_way or back is None:
        return loss
    _check(back, "back")
    return loss + _endpoint(back, truth.back, truth.back_valid, scale)


def sequence(losses: Sequence[Tensor], gamma: float = 0.8) -> Tensor:
    """Σ_i γ^(N − 1 − i) L_i over the N iterations of the network, the last with weight 1."""
    if not losses:
        raise InputError("losses: expected at least one, got none")
    return torch.stack([gamma ** (len(losses) - 1 - i) * loss for i, loss in enumerate(losses)]).sum()


def life_loss(
    ab: Flows,
    ba: Flows,
    F: Float[Tensor, "b 3 3"],
    *,
    there: Flows | None = None,
    back: Flows | None = None,
    warp: Warp | Truth | None = None,
    weights: Weights = Weights(),  # noqa: B008  a tuple of numbers
    gamma: float = 0.8,
    one_way: bool = False,
    cycle_mode: str = "adaptive",
    alpha: float = ALPHA,
    beta: float = BETA,
    sed_scale: float | None = 5.0,
    bit_scale: float | None = 4.0,
) -> Life:
    """The joint loss w_sed·SED + w_bit·BiT + w_cycle·cycle [LIFE Eq. 1–3].

    Parameters
    ----------
    ab, ba : Tensor (b, h, w, 2), or a list of one an iteration
        The flows of a pair of views, weighted by `sequence`. SED and cycle are the means of both directions.
    F : Tensor (b, 3, 3)
        Maps points of a to lines in b.
    there, back : the same, optional
        The flows between photos and the same photos bent, which BiT needs.
    warp : Warp or Truth, optional
        The bend.
    weights : Weights
        Of the three losses; one of weight 0 is not computed.
    gamma, one_way, cycle_mode, alpha, beta, sed_scale, bit_scale
        As for the losses themselves.

    Returns
    -------
    Life
        The total and its parts before weighting; a part that was not asked for is None.

    Raises
    ------
    InputError
        Where BiT has a weight but no flows.

    Examples
    --------
    >>> import torch
    >>> import likewise as lw
    >>> F = torch.tensor([[[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]])
    >>> flow = torch.tensor([3.0, 0]).expand(1, 8, 8, 2)
    >>> float(lw.pixels.life_loss(flow, -flow, F, weights=lw.pixels.life.Weights(bit=0)).total)
    0.0
    """
    pairs = _pairs(ab, ba, "ab, ba")
    parts: dict[str, Tensor | None] = {"sed": None, "bit": None, "cycle": None}
    if weights.sed:
        ways = [(sed_loss(f, F, scale=sed_scale), sed_loss(g, F.mT, scale=sed_scale)) for f, g in pairs]
        parts["sed"] = sequence([0.5 * (there + back) for there, back in ways], gamma)
    if weights.bit:
        parts["bit"] = _joint_bit(there, back, warp, one_way, bit_scale, gamma)
    if weights.cycle:
        tolerance: dict[str, Any] = {"mode": cycle_mode, "alpha": alpha, "beta": beta}
        ways = [(cycle_loss(f, g, **tolerance), cycle_loss(g, f, **tolerance)) for f, g in pairs]
        parts["cycle"] = sequence([0.5 * (there + back) for there, back in ways], gamma)
    total = sum((getattr(weights, k) * v for k, v in parts.items() if v is not None), pairs[0][0].new_zeros(()))
    return Life(total, **parts)


def masked_mean(values: Float[Tensor, "*n"], mask: Bool[Tensor, "*n"] | None) -> Float[Tensor, ""]:
    """The mean over the mask; 0 with a gradient of 0 where it is empty."""
    if mask is None:
        return values.mean()
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def _homogeneous(points: Tensor, k: int) -> Tensor:
    """Points (…, *n, 2) with k leading axes as columns (…, 3, n) that end in 1."""
    flat = points.reshape(*points.shape[:k], -1, 2).mT
    return torch.cat([flat, torch.ones_like(flat[..., :1, :])], dim=-2)


def _norm(line: Tensor, F: Tensor, p: Tensor, eps: float) -> Tensor:
    """√(l₁² + l₂² + ε² Σ_ij (F_ij p_j)²), i ≤ 2: a line's norm, with a floor relative to the terms it is the sum of.

    At the epipole the terms cancel and l = 0; the floor, which scales as F does, keeps 1/norm finite.
    """
    terms = F[..., :2, :].square().sum(dim=-2, keepdim=True) @ p.square()
    squared = line[..., 0, :].square() + line[..., 1, :].square() + eps**2 * terms[..., 0, :]
    return squared.clamp(min=torch.finfo(line.dtype).tiny).sqrt()


def _joint_bit(
    there: Flows | None, back: Flows | None, warp: Warp | Truth | None, one_way: bool, scale: float | None, gamma: float
) -> Tensor:
    """BiT over the iterations, its truth made once."""
    if there is None or warp is None or (back is None and not one_way):
        raise InputError("there, back, warp: expected flows and their warp, got None; give all, or weights.bit = 0")
    pairs = _pairs(there, there if back is None else back, "there, back")
    truth = warp if isinstance(warp, Truth) else _truth(*pairs[0], warp, RESIDUAL)
    return sequence([bit_loss(f, g, truth, one_way=one_way, scale=scale) for f, g in pairs], gamma)


def _truth(there: Tensor, back: Tensor | None, warp: Warp, residual: float) -> Truth:
    """The truth for frames as large as the network's flows."""
    size = int(there.shape[1]), int(there.shape[2])
    other = size if back is None else (int(back.shape[1]), int(back.shape[2]))
    return bit_truth(warp, size, other, like=there, residual=residual)


def _endpoint(flow: Tensor, truth: Tensor, valid: Tensor, scale: float | None) -> Tensor:
    """Mean of soft(‖flow − truth‖) over the valid pixels."""
    if flow.shape != truth.shape:
        raise ShapeError(f"flow: expected the shape of its warp, {tuple(truth.shape)}, got {tuple(flow.shape)}")
    return masked_mean(soft(torch.linalg.vector_norm(_cleaned(flow - truth, valid), dim=-1), scale), valid)


def _cleaned(flow: Tensor, valid: Tensor | None) -> Tensor:
    """0 where masked, so that NaN there reaches neither value nor gradient."""
    return flow if valid is None else torch.where(valid[..., None], flow, 0.0)


def _both(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a & b


def _pairs(a: Flows, b: Flows, where: str) -> list[tuple[Tensor, Tensor]]:
    """The flows of both directions, iteration by iteration."""
    first, second = ([x] if isinstance(x, Tensor) else list(x) for x in (a, b))
    if not first or len(first) != len(second):
        got = f"{len(first)} and {len(second)}"
        raise InputError(f"{where}: expected as many flows one way as the other, at least one, got {got}")
    return list(zip(first, second, strict=True))


def _check(flow: Tensor, where: str) -> None:
    if flow.ndim != 4 or flow.shape[-1] != 2:
        raise ShapeError(f"{where}: expected a flow (b, h, w, 2), got {tuple(flow.shape)}")
