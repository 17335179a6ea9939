"""Two views of one scene: epipolar lines, fundamental matrices, homographies, and their change with an image's size.

Points are (x, y) in pixels with pixel centres at integers; sizes are (h, w). X_b = R X_a + t; F maps points of a to
lines in b, [y, 1] F [x, 1]ᵀ = 0; a homography H maps points of a to points of b. Resampling and warps are here by name,
too.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import cv2
import numpy as np
import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from likewise.errors import InputError, ShapeError

Size: TypeAlias = tuple[int, int]
Side: TypeAlias = Literal["shortest", "longest"]


def grid(h: int, w: int, *, like: Tensor | None = None) -> Float[Tensor, "h w 2"]:
    """The centres of the pixels, grid[i, j] = (j, i); dtype and device are those of `like`."""
    dtype = like.dtype if like is not None and like.dtype.is_floating_point else torch.get_default_dtype()
    device = None if like is None else like.device
    y, x = torch.arange(h, dtype=dtype, device=device), torch.arange(w, dtype=dtype, device=device)
    return torch.stack([x.expand(h, w), y[:, None].expand(h, w)], dim=-1)


def sample(
    image: Float[Tensor, "b c h w"], points: Float[Tensor, "b h2 w2 2"], *, padding: str = "zeros"
) -> Float[Tensor, "b c h2 w2"]:
    """The image at points in pixels: Σ_p image[p] k(x − p_x) k(y − p_y), k the hat of bilinear interpolation.

    Beyond the frame the image is 0 (`padding="zeros"`) or its nearest border (`"border"`).
    """
    if padding not in ("zeros", "border"):
        raise InputError(f"padding: expected 'zeros' or 'border', got {padding!r}")
    if image.ndim != 4 or points.ndim != 4 or points.shape[-1] != 2 or len(image) != len(points):
        got = f"{tuple(image.shape)} and {tuple(points.shape)}"
        raise ShapeError(f"image, points: expected (b, c, h, w) and (b, h2, w2, 2), got {got}")
    # half-pixel units, (2x + 1)/w − 1, because the other convention divides by w − 1
    size = points.new_tensor([image.shape[3], image.shape[2]])
    unit = ((2.0 * points + 1.0) / size - 1.0).to(image.dtype)
    return nnf.grid_sample(image, unit, padding_mode=padding, align_corners=False)


def inside(points: Float[Tensor, "*n 2"], h: int, w: int, *, margin: float = 0.0) -> Bool[Tensor, "*n"]:
    """Whether points lie between the centres of the outermost pixels, `margin` px of leeway allowed; NaN does not."""
    x, y = points[..., 0], points[..., 1]
    return (x >= -margin) & (x <= w - 1 + margin) & (y >= -margin) & (y <= h - 1 + margin)


def warp(
    image_b: Float[Tensor, "b c h2 w2"], flow_ab: Float[Tensor, "b h w 2"], padding: str = "zeros"
) -> Float[Tensor, "b c h w"]:
    """b brought onto a: warped[p] = b[p + flow[p]]."""
    return sample(image_b, follow(flow_ab), padding=padding)


def follow(flow: Float[Tensor, "*n h w 2"]) -> Float[Tensor, "*n h w 2"]:
    """Where each pixel goes, p + flow[p]."""
    h, w = _frame(flow, "flow")
    return grid(h, w, like=flow) + flow


def compose(ab: Float[Tensor, "*n h w 2"], bc: Float[Tensor, "*n h2 w2 2"]) -> Float[Tensor, "*n h w 2"]:
    """ac[p] = ab[p] + bc[p + ab[p]]; beyond the frame of b, bc goes on as at its border."""
    return ab + carried(bc, follow(ab))


def carried(flow: Float[Tensor, "*n h w 2"], points: Float[Tensor, "*n h2 w2 2"]) -> Float[Tensor, "*n h2 w2 2"]:
    """The flow's vectors at points of its own frame, bilinear, beyond the frame as at the border."""
    _frame(flow, "flow")
    _frame(points, "points")
    lead = points.shape[:-3]
    field, at = flow.flatten(0, -4) if flow.ndim > 3 else flow[None], points.reshape(-1, *points.shape[-3:])
    vectors = sample(field.permute(0, 3, 1, 2), at, padding="border")
    return vectors.permute(0, 2, 3, 1).reshape(*lead, *points.shape[-3:])


def resize_flow(
    flow: Float[Tensor, "*n h w 2"], size: Size, target: tuple[Size, Size] | None = None
) -> Float[Tensor, "*n h2 w2 2"]:
    """The flow between images resized: the one it starts in to `size`, the one it ends in from and to `target`.

    Vectors are read bilinearly at the old places; without `target` both images are resized alike.
    """
    old = _frame(flow, "flow")
    check_size(size, "size")
    if tuple(size) == old and (target is None or target[0] == target[1]):
        return flow
    field = flow.reshape(-1, *flow.shape[-3:]).permute(0, 3, 1, 2)
    field = nnf.interpolate(field, size=tuple(size), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)
    if target is None:
        moved = field * flow.new_tensor([size[1] / old[1], size[0] / old[0]])
    else:
        start = grid(*size, like=flow)
        moved = resize_points(resize_points(start, size, old) + field, *target) - start
    return moved.reshape(*flow.shape[:-3], *size, 2)


def resize_points(points: Float[Tensor, "*n 2"], old: Size, new: Size) -> Float[Tensor, "*n 2"]:
    """Points of an image of size `old` in the image resized to `new`: (p + ½) s − ½."""
    check_size(old, "old")
    check_size(new, "new")
    scale = points.new_tensor([new[1] / old[1], new[0] / old[0]])
    return (points + 0.5) * scale - 0.5


def size_of(image: Tensor) -> Size:
    """(h, w) of images (…, h, w)."""
    return int(image.shape[-2]), int(image.shape[-1])


def fitted(size: Size, px: int | None, side: Side = "shortest", *, least: int = 1) -> Size:
    """The size (h, w) of an image whose shortest (or longest) side is at most `px`; it is never enlarged."""
    scale = 1.0 if px is None else min(1.0, px / (min(size) if side == "shortest" else max(size)))
    return max(least, round(size[0] * scale)), max(least, round(size[1] * scale))


def resize(x: Float[Tensor, "c h w"], size: Size, *, mode: str = "bilinear") -> Float[Tensor, "c h2 w2"]:
    """An image at another size; half-pixel rule, averaged over areas where it shrinks."""
    if size_of(x) == size:
        return x
    return nnf.interpolate(x[None], size, mode=mode, align_corners=False, antialias=True)[0]


def shrink(
    image: UInt8[np.ndarray, "h w 3"], *, shortest: int | None = None, longest: int | None = None
) -> UInt8[np.ndarray, "h2 w2 3"]:
    """An image with its shorter side at `shortest`, or its longer one at `longest`; averaged, never enlarged."""
    h, w = image.shape[:2]
    size = fitted((h, w), shortest) if longest is None else fitted((h, w), longest, "longest")
    return image if size == (h, w) else np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA))


def _frame(flow: Tensor, where: str) -> Size:
    """The size (h, w) of a field of vectors, or a ShapeError."""
    if flow.ndim < 3 or flow.shape[-1] != 2:
        raise ShapeError(f"{where}: expected (…, h, w, 2), got {tuple(flow.shape)}")
    return int(flow.shape[-3]), int(flow.shape[-2])


def check_size(size: Size, where: str) -> None:
    """An InputError unless both sides are at least 1."""
    if len(size) != 2 or min(size) < 1:
        raise InputError(f"{where}: expected a size (h, w) of at least 1 × 1, got {tuple(size)}")


RANK = 1e-3
"""A fundamental matrix may have a third singular value of up to this share of its first."""
UNITS = tuple(float(4**k) for k in range(7))
"""The units of length, in pixels (1 … 4096), in which the rank of a fundamental matrix is looked at."""


def skew(v: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3 3"]:
    """[v]ₓ, the matrix with [v]ₓ u = v × u."""
    x, y, z = v.unbind(dim=-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).reshape(*v.shape, 3)


def fundamental(
    Ka: Float[Tensor, "*n 3 3"], Kb: Float[Tensor, "*n 3 3"], R: Float[Tensor, "*n 3 3"], t: Float[Tensor, "*n 3"]
) -> Float[Tensor, "*n 3 3"]:
    """F = K_b⁻ᵀ [t]ₓ R K_a⁻¹, of unit Frobenius norm; a and b must not share their centre."""
    F = torch.linalg.inv(Kb).mT @ skew(t) @ R @ torch.linalg.inv(Ka)
    norm: Tensor = torch.linalg.matrix_norm(F, keepdim=True)
    if not bool((norm > 0).all()):
        raise InputError("t: expected a translation, got 0; views from one spot have a homography, no F")
    unit: Tensor = F / norm
    return unit


def apply(M: Float[Tensor, "*m 3 3"], points: Float[Tensor, "*n 2"]) -> Float[Tensor, "*q 3"]:
    """M [x, 1]ᵀ: of an F the epipolar lines (l₁, l₂, l₃) with l₁ x + l₂ y + l₃ = 0.

    The k leading axes of M are the first k of the points (either may be 1).
    """
    if M.ndim < 2 or M.shape[-2:] != (3, 3) or points.shape[-1:] != (2,) or points.ndim < M.ndim - 1:
        got = f"{tuple(M.shape)} and {tuple(points.shape)}"
        raise ShapeError(f"matrix, points: expected (…, 3, 3) and (…, 2) with the same leading axes, got {got}")
    k = M.ndim - 2
    flat = points.reshape(*points.shape[:k], -1, 2)
    moved = flat @ M[..., :2].mT + M[..., None, :, 2]
    return moved.reshape(*moved.shape[:-2], *points.shape[k:-1], 3)


def transform(H: Float[Tensor, "*m 3 3"], points: Float[Tensor, "*n 2"]) -> Float[Tensor, "*q 2"]:
    """q / q₃ for q = H [x, 1]ᵀ; points on the line that H sends to infinity come out large but finite."""
    q = apply(H, points)
    z = q[..., 2:]
    tiny = torch.finfo(z.dtype).eps * H.detach().abs().amax()
    return q[..., :2] / torch.where(z.abs() < tiny, torch.where(z < 0, -tiny, tiny), z)


def homography_flow(H: Float[Tensor, "*m 3 3"], h: int, w: int) -> Float[Tensor, "*m h w 2"]:
    """The flow H p − p of an image of a plane, on the (h, w) frame of a."""
    points = grid(h, w, like=H).expand(*H.shape[:-2], h, w, 2)
    return transform(H, points) - points


def scaling(old: Size, new: Size, *, like: Tensor | None = None) -> Float[Tensor, "3 3"]:
    """S with S [p, 1]ᵀ = [(p + ½) s − ½, 1]ᵀ: from points of an image to those of the image resized; float64."""
    check_size(old, "old")
    check_size(new, "new")
    sx, sy = new[1] / old[1], new[0] / old[0]
    rows = [[sx, 0.0, 0.5 * sx - 0.5], [0.0, sy, 0.5 * sy - 0.5], [0.0, 0.0, 1.0]]
    made = torch.tensor(rows, dtype=torch.float64)
    return made if like is None else made.to(like)


def rescale_fundamental(
    F: Float[Tensor, "*n 3 3"], a_old: Size, a_new: Size, b_old: Size, b_new: Size
) -> Float[Tensor, "*n 3 3"]:
    """S_b⁻ᵀ F S_a⁻¹, the fundamental matrix between the images resized."""
    return scaling(b_new, b_old, like=F).mT @ F @ scaling(a_new, a_old, like=F)


def rescale_homography(
    H: Float[Tensor, "*n 3 3"], a_old: Size, a_new: Size, b_old: Size, b_new: Size
) -> Float[Tensor, "*n 3 3"]:
    """S_b H S_a⁻¹, the homography between the images resized."""
    return scaling(b_old, b_new, like=H) @ H @ scaling(a_new, a_old, like=H)


def rescale_intrinsics(K: Float[Tensor, "*n 3 3"], old: Size, new: Size) -> Float[Tensor, "*n 3 3"]:
    """S K, the camera of the image resized."""
    return scaling(old, new, like=K) @ K


def check_fundamental(F: Tensor, *, where: str = "F") -> None:
    """An InputError unless F (…, 3, 3) is finite, not 0, and of rank 2 but for rounding.

    The singular values of a matrix in pixels depend on the unit of length: in large units any F looks singular. So F is
    looked at as diag(s, s, 1) F diag(s, s, 1) for s of 1, 4, … 4096 px, and must have σ₃ ≤ 10⁻³ σ₁ in all of them (and
    σ₂ > 10⁻⁶ σ₁ in one: of rank 1 it has no epipolar lines).
    """
    if F.ndim < 2 or F.shape[-2:] != (3, 3):
        raise ShapeError(f"{where}: expected (…, 3, 3), got {tuple(F.shape)}")
    exact = F.detach().double()
    if not bool(torch.isfinite(exact).all()):
        raise InputError(f"{where} contains NaN or infinity")
    if not bool((exact.abs().amax(dim=(-1, -2)) > 0).all()):
        raise InputError(f"{where}: expected a fundamental matrix, got 0")
    second, third = _ranks(exact)
    if third > RANK:
        advice = "set its smallest singular value to 0, or give F and not a homography"
        raise InputError(f"{where}: expected rank 2, got rank 3 (σ₃/σ₁ = {third:.2g}); {advice}")
    if second < 1e-6:
        raise InputError(f"{where}: expected rank 2, got rank 1 (σ₂/σ₁ = {second:.2g})")


def _ranks(F: Tensor) -> tuple[float, float]:
    """The smallest σ₂/σ₁ and the largest σ₃/σ₁ of a batch, each the largest over the units of length."""
    s = torch.tensor([[u, u, 1.0] for u in UNITS], dtype=F.dtype, device=F.device)
    F = F / torch.linalg.matrix_norm(F, keepdim=True)
    sigma = torch.linalg.svdvals(F[..., None, :, :] * s[:, :, None] * s[:, None, :])
    shares = (sigma[..., 1:] / sigma[..., :1]).amax(dim=-2)
    return float(shares[..., 0].min()), float(shares[..., 1].max())
