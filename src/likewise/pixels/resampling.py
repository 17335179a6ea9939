"""Dense points and flows: reading pictures between pixels, warping, composing and resizing flows.

Points and flow vectors are (x, y) in pixels, pixel centres lie at integers, sizes are written (h, w). A flow a→b takes
pixel p of a to p + flow[p] in b.
"""

from __future__ import annotations

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.errors import InputError, ShapeError

Size = tuple[int, int]
MODES = ("bilinear", "nearest", "bicubic")


def grid(h: int, w: int, *, like: Tensor | None = None) -> Float[Tensor, "h w 2"]:
    """The centres of the pixels, grid[i, j] = (j, i); dtype and device are those of `like`."""
    dtype = like.dtype if like is not None and like.dtype.is_floating_point else torch.get_default_dtype()
    device = None if like is None else like.device
    y, x = torch.arange(h, dtype=dtype, device=device), torch.arange(w, dtype=dtype, device=device)
    return torch.stack([x.expand(h, w), y[:, None].expand(h, w)], dim=-1)


def sample(
    image: Float[Tensor, "b c h w"],
    points: Float[Tensor, "b h2 w2 2"],
    *,
    mode: str = "bilinear",
    padding: str = "zeros",
) -> Float[Tensor, "b c h2 w2"]:
    """The image at points in pixels: Σ_p image[p] k(x − p_x) k(y − p_y), k the hat of bilinear interpolation.

    Beyond the frame the image is 0 (`padding="zeros"`) or its nearest border (`"border"`).
    """
    if mode not in MODES:
        raise InputError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if padding not in ("zeros", "border"):
        raise InputError(f"padding: expected 'zeros' or 'border', got {padding!r}")
    if image.ndim != 4 or points.ndim != 4 or points.shape[-1] != 2 or len(image) != len(points):
        got = f"{tuple(image.shape)} and {tuple(points.shape)}"
        raise ShapeError(f"image, points: expected (b, c, h, w) and (b, h2, w2, 2), got {got}")
    # half-pixel units, (2x + 1)/w − 1, because the other convention divides by w − 1
    size = points.new_tensor([image.shape[3], image.shape[2]])
    unit = ((2.0 * points + 1.0) / size - 1.0).to(image.dtype)
    return nnf.grid_sample(image, unit, mode=mode, padding_mode=padding, align_corners=False)


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
    found = sample(field.permute(0, 3, 1, 2), at, padding="border")
    return found.permute(0, 2, 3, 1).reshape(*lead, *points.shape[-3:])


def resize_flow(flow: Float[Tensor, "*n h w 2"], size: Size) -> Float[Tensor, "*n h2 w2 2"]:
    """The flow between both images resized to (h, w): read bilinearly at the old places, its vectors scaled."""
    old = _frame(flow, "flow")
    check_size(size, "size")
    if tuple(size) == old:
        return flow
    field = flow.reshape(-1, *flow.shape[-3:]).permute(0, 3, 1, 2)
    field = nnf.interpolate(field, size=tuple(size), mode="bilinear", align_corners=False)
    scale = flow.new_tensor([size[1] / old[1], size[0] / old[0]])
    return (field.permute(0, 2, 3, 1) * scale).reshape(*flow.shape[:-3], *size, 2)


def resize_points(points: Float[Tensor, "*n 2"], old: Size, new: Size) -> Float[Tensor, "*n 2"]:
    """Points of an image of size `old` in the image resized to `new`: (p + ½) s − ½."""
    check_size(old, "old")
    check_size(new, "new")
    scale = points.new_tensor([new[1] / old[1], new[0] / old[0]])
    return (points + 0.5) * scale - 0.5


def _frame(flow: Tensor, where: str) -> Size:
    """The size (h, w) of a field of vectors, or a ShapeError."""
    if flow.ndim < 3 or flow.shape[-1] != 2:
        raise ShapeError(f"{where}: expected (…, h, w, 2), got {tuple(flow.shape)}")
    return int(flow.shape[-3]), int(flow.shape[-2])


def check_size(size: Size, where: str) -> None:
    """An InputError unless both sides are at least 1."""
    if len(size) != 2 or min(size) < 1:
        raise InputError(f"{where}: expected a size (h, w) of at least 1 × 1, got {tuple(size)}")
