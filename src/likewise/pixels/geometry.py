"""Points, flows, cameras and warps, and their change with an image's size.

Points are (x, y) in pixels with pixel centres at integers; sizes are (h, w). X_b = R X_a + t; F maps points of a to
lines in b, [y, 1] F [x, 1]ᵀ = 0; a homography H maps points of a to points of b.

A warp T takes an image B to B′ = T(B): affine maps, thin-plate splines, and both in a row, drawn at random. `backward`
takes points of B′ to B, exactly, and is what makes the image; `forward` takes points of B to B′ and says how far
back-and-forth misses. All are batched: b maps side by side.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
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


# ---------------------------------------------------------------------------------------------------------------- warps


STEEPEST = 0.65
"""The largest slope ‖∂D‖₂ of a random thin plate's displacement: below 1, p + D(p) never folds."""

COARSE = 8
"""A thin plate is inverted on every eighth point first."""


class Warp(ABC):
    """b invertible maps of the plane between an image B and B′ = T(B)."""

    like: Tensor
    """A tensor of the dtype and on the device that its points should have."""

    @abstractmethod
    def __len__(self) -> int:
        """How many maps: b."""

    @abstractmethod
    def backward(self, points: Float[Tensor, "#b *n 2"]) -> Float[Tensor, "b *n 2"]:
        """T⁻¹: points of B′ to points of B, exact; points (1, …, 2) are taken through all b maps."""

    @abstractmethod
    def invert(self, points: Float[Tensor, "#b *n 2"]) -> tuple[Float[Tensor, "b *n 2"], Float[Tensor, "b *n 2"]]:
        """T(x) for points x of B as far as it could be found, and T⁻¹ of that, which should be x."""

    @abstractmethod
    def part(self, rows: slice) -> Warp:
        """Some of the maps."""

    def forward(self, points: Float[Tensor, "#b *n 2"]) -> tuple[Float[Tensor, "b *n 2"], Float[Tensor, " b *n"]]:
        """T(x), and the residual ‖T⁻¹(T(x)) − x‖ in pixels of B; points (1, …, 2) are taken through all b maps."""
        there, again = self.invert(points)
        return there, torch.linalg.vector_norm(again - points, dim=-1)


class Affine(Warp):
    """T⁻¹(p) = A p + c for `matrix` = [A c], (b, 2, 3), B′ to B; T in closed form, inverted in float64."""

    def __init__(self, matrix: Float[Tensor, "b 2 3"]) -> None:
        if matrix.ndim != 3 or matrix.shape[1:] != (2, 3):
            raise ShapeError(f"matrix: expected (b, 2, 3), got {tuple(matrix.shape)}")
        exact = matrix.double()
        if bool((torch.linalg.det(exact[:, :, :2]).abs() < 1e-9).any()):
            raise InputError("matrix: a map has determinant 0 and no inverse; give invertible ones")
        back = torch.linalg.inv(exact[:, :, :2])
        self.matrix = self.like = matrix
        self.inverted = torch.cat([back, -back @ exact[:, :, 2:]], dim=2).to(matrix.dtype)

    def __len__(self) -> int:
        return len(self.matrix)

    def backward(self, points: Float[Tensor, "#b *n 2"]) -> Float[Tensor, "b *n 2"]:
        """A p + c."""
        return _affine(self.matrix, points)

    def invert(self, points: Float[Tensor, "#b *n 2"]) -> tuple[Float[Tensor, "b *n 2"], Float[Tensor, "b *n 2"]]:
        """A⁻¹ (x − c)."""
        there = _affine(self.inverted, points)
        return there, self.backward(there)

    def part(self, rows: slice) -> Affine:
        """Some of the maps."""
        return Affine(self.matrix[rows])


class ThinPlate(Warp):
    """T⁻¹(p) = p + D(p), D the thin-plate spline that takes the values `moved` (b, k, 2) at `knots` (k, 2), in pixels.

    D(p) = Σ_k w_k U(‖p − c_k‖) + A p + a with U(r) = r² log r, Σ w_k = 0, Σ w_k c_k = 0: of all interpolants the least
    bent. T is found by Newton's iteration on p + D(p) = x, until it misses by ≤ `tol` px or after `steps` of them.
    """

    def __init__(
        self, knots: Float[Tensor, "k 2"], moved: Float[Tensor, "b k 2"], *, tol: float = 1e-3, steps: int = 8
    ) -> None:
        if knots.ndim != 2 or moved.ndim != 3 or knots.shape[1] != 2 or moved.shape[1:] != knots.shape:
            got = f"{tuple(knots.shape)} and {tuple(moved.shape)}"
            raise ShapeError(f"knots, moved: expected (k, 2) and (b, k, 2), got {got}")
        exact = knots.double()
        centre, self.unit = exact.mean(dim=0), max(float((exact.amax(dim=0) - exact.amin(dim=0)).max()), 1.0)
        local = (exact - centre) / self.unit
        self.centre, self.knots, self.tol, self.steps = centre.to(moved), local.to(moved), tol, steps
        self.bend, self.plane = (part.to(moved) for part in _spline(local, moved.double()))
        self.like = self.bend
        ones = torch.ones_like(self.knots[:, :1])
        self._apart = torch.cat([-2.0 * self.knots, self.knots.square().sum(dim=1, keepdim=True), ones], dim=1)

    def __len__(self) -> int:
        return len(self.bend)

    def backward(self, points: Float[Tensor, "#b *n 2"]) -> Float[Tensor, "b *n 2"]:
        """p + D(p)."""
        return _rows([part + self._moved(*self._local(part)) for part in self._parts(_columns(points))], points)

    def invert(self, points: Float[Tensor, "#b *n 2"]) -> tuple[Float[Tensor, "b *n 2"], Float[Tensor, "b *n 2"]]:
        """The p with p + D(p) = x by Newton's iteration, and p + D(p)."""
        starts, ends = self._parts(self._start(points)), self._parts(_columns(points))
        pairs = [self._newton(at, x) for at, x in zip(starts, ends, strict=True)]
        return _rows([at for at, _ in pairs], points), _rows([again for _, again in pairs], points)

    def part(self, rows: slice) -> ThinPlate:
        """Some of the maps."""
        few = copy.copy(self)
        few.bend, few.plane = self.bend[rows], self.plane[rows]
        return few

    def slope(self, points: Float[Tensor, "#b *n 2"]) -> Float[Tensor, "b *n 2 2"]:
        """∂D/∂p at points of B′; row: component of D, column: coordinate."""
        p, _, log = self._local(_columns(points))
        return torch.stack(self._slopes(p, log), dim=-1).reshape(-1, *points.shape[1:], 2)

    def _newton(self, at: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """p ← p − (I + ∂D(p))⁻¹ (p + D(p) − x) from p = `at`, both (b, 2, n); the last p, and p + D(p)."""
        least = 1 if x.requires_grad else 0  # a step at least, for the gradient
        for step in range(self.steps + 1):
            p, r2, log = self._local(at)
            again = at + self._moved(p, r2, log)
            if step == self.steps or (step >= least and _within(again - x, self.tol)):
                break
            at = at - _solve(self._slopes(p, log), again - x)
        return at, again

    def _start(self, points: Tensor) -> Tensor:
        """A first guess of T, (b, 2, n): for a field (b, h, w, 2) T itself on every eighth point, bilinear between."""
        x = _columns(points).expand(len(self), -1, -1)
        if points.ndim != 4 or min(points.shape[1:3]) <= 4 * COARSE:
            return x
        with torch.no_grad():
            h, w = points.shape[1:3]
            rows, columns = (torch.linspace(0, n - 1, -(-n // COARSE) + 1).round().long() for n in (h, w))
            coarse = points[:, rows][:, :, columns]
            moved = (self.invert(coarse)[0] - coarse).permute(0, 3, 1, 2)
            moved = nnf.interpolate(moved, size=(h, w), mode="bilinear", align_corners=True)
        return x + moved.flatten(2)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        """Points (b, 2, n) in parts whose distances to the knots are about a megabyte: larger ones cost page faults."""
        return torch.split(x, max(2**18 // (len(self) * len(self.knots)), 64), dim=2)

    def _local(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Points (b, 2, n) in units of the knots' span, squared distances to the knots (b, k, n), their logarithms."""
        p = (x - self.centre[:, None]) / self.unit
        far = p[:, :1].square() + p[:, 1:].square()
        r2 = self._apart @ torch.cat([p, torch.ones_like(far), far], dim=1)
        r2 = r2.clamp(min=1e-12)
        return p, r2, r2.log()

    def _moved(self, p: Tensor, r2: Tensor, log: Tensor) -> Tensor:
        """D (b, 2, n), with U = ½ r² log r²."""
        return (0.5 * self.bend).mT @ (r2 * log) + self.plane[:, :2].mT @ p + self.plane[:, 2, :, None]

    def _slopes(self, p: Tensor, log: Tensor) -> list[Tensor]:
        """∂D = Σ w_k (log r² + 1) (p − c_k)ᵀ + A, row by row; the 1 drops out, as Σ w_k = 0 and Σ w_k c_k = 0."""
        bent = self.bend.mT @ log
        turned = (self.bend[..., None] * self.knots[:, None, :]).flatten(2).mT @ log
        plane = self.plane[:, :2].mT
        rows = [(i, j) for i in (0, 1) for j in (0, 1)]
        return [(bent[:, i] * p[:, j] - turned[:, 2 * i + j] + plane[:, i, j, None]) / self.unit for i, j in rows]


class Chain(Warp):
    """`first`, then `second` on what it made: T = T₂ ∘ T₁."""

    def __init__(self, first: Warp, second: Warp) -> None:
        if len(first) != len(second):
            raise ShapeError(f"second: expected {len(first)} maps as the first warp has, got {len(second)}")
        self.first, self.second, self.like = first, second, first.like

    def __len__(self) -> int:
        return len(self.first)

    def backward(self, points: Float[Tensor, "#b *n 2"]) -> Float[Tensor, "b *n 2"]:
        """T₁⁻¹(T₂⁻¹(p))."""
        return self.first.backward(self.second.backward(points))

    def invert(self, points: Float[Tensor, "#b *n 2"]) -> tuple[Float[Tensor, "b *n 2"], Float[Tensor, "b *n 2"]]:
        """T₂(T₁(x))."""
        there, between = self.second.invert(self.first.invert(points)[0])
        return there, self.first.backward(between)

    def part(self, rows: slice) -> Chain:
        """Some of the maps."""
        return Chain(self.first.part(rows), self.second.part(rows))


def random_affine(
    b: int,
    h: int,
    w: int,
    *,
    generator: torch.Generator,
    rotation: float = 30.0,
    scale: float = 1.4,
    shear: float = 0.15,
    shift: float = 0.1,
    like: Tensor | None = None,
) -> Affine:
    """b affine maps about the centre of an (h, w) frame, every option drawn evenly between its bounds.

    Turned by ±`rotation` degrees, sized by 1/`scale` … `scale` (evenly in the logarithm), sheared by ±`shear`, shifted
    by ±`shift` of width and height. Drawn on the CPU; `like` gives dtype and device.
    """
    if scale < 1.0:
        raise InputError(f"scale: expected a largest factor ≥ 1, got {scale}; sizes lie between 1/scale and scale")
    turn, size, skewed, right, down = (2.0 * torch.rand(b, 5, generator=generator, dtype=torch.float64) - 1.0).unbind(1)
    angle, size, skewed = turn * math.radians(rotation), torch.exp(size * math.log(scale)), skewed * shear
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros(b).double(), torch.ones(b).double()
    turned = torch.stack([cos, -sin, sin, cos], dim=1).reshape(b, 2, 2)
    A = size[:, None, None] * turned @ torch.stack([one, skewed, zero, one], dim=1).reshape(b, 2, 2)
    centre = torch.tensor([(w - 1) / 2, (h - 1) / 2], dtype=torch.float64)
    c = centre + torch.stack([right * shift * w, down * shift * h], dim=1) - A @ centre
    return Affine(_like(torch.cat([A, c[:, :, None]], dim=2), like))


def random_thin_plate(
    b: int,
    h: int,
    w: int,
    *,
    generator: torch.Generator,
    strength: float = 0.15,
    cells: int = 3,
    like: Tensor | None = None,
) -> ThinPlate:
    """b thin plates whose (cells + 1)² knots, spread over an (h, w) frame, move by up to ± `strength` of a cell.

    A plate that is steeper than STEEPEST anywhere on the frame and a quarter around it is flattened to that slope, so
    that every map can be inverted. Drawn on the CPU; `like` gives dtype and device.
    """
    if cells < 1:
        raise InputError(f"cells: expected at least 1, got {cells}")
    x, y = (torch.linspace(0, n - 1, cells + 1, dtype=torch.float64) for n in (w, h))
    knots = torch.cartesian_prod(y, x).flip(1)
    cell = torch.tensor([w - 1, h - 1], dtype=torch.float64) / cells
    drawn = 2.0 * torch.rand(b, len(knots), 2, generator=generator, dtype=torch.float64) - 1.0
    moved = drawn * strength * cell
    steep = _steepest(ThinPlate(knots, moved), h, w)
    moved = moved * (STEEPEST / steep.clamp(min=1e-12)).clamp(max=1.0)[:, None, None]
    return ThinPlate(_like(knots, like), _like(moved, like))


def random_warp(
    b: int,
    h: int,
    w: int,
    *,
    generator: torch.Generator,
    strength: float = 0.15,
    like: Tensor | None = None,
    **affine: float,
) -> Chain:
    """b random affine maps, each followed by a random thin plate; the options are those of both."""
    first = random_affine(b, h, w, generator=generator, like=like, **affine)
    return Chain(first, random_thin_plate(b, h, w, generator=generator, strength=strength, like=like))


def _affine(matrix: Tensor, points: Tensor) -> Tensor:
    """A p + c for each map of a batch."""
    moved = points.reshape(len(points), -1, 2) @ matrix[:, :, :2].mT + matrix[:, None, :, 2]
    return moved.reshape(-1, *points.shape[1:])


def _spline(knots: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """w (b, k, 2) and [A a]ᵀ (b, 3, 2) of the thin plate through values (b, k, 2) at knots (k, 2)."""
    k = len(knots)
    r2 = (knots[:, None] - knots[None]).square().sum(dim=-1)
    P = torch.cat([knots, torch.ones(k, 1).to(knots)], dim=1)
    L = torch.zeros(k + 3, k + 3).to(knots)
    L[:k, :k], L[:k, k:], L[k:, :k] = 0.5 * torch.special.xlogy(r2, r2), P, P.T
    right = torch.cat([values, values.new_zeros(len(values), 3, 2)], dim=1)
    solution, failed = torch.linalg.solve_ex(L.expand(len(values), -1, -1), right)
    if bool(failed.any()):
        raise InputError("knots: expected at least 3 different ones that are not all on one line")
    return solution[:, :k], solution[:, k:]


def _within(miss: Tensor, tol: float) -> bool:
    """Whether every component is at most `tol`; NaN is not."""
    return bool((miss.detach().abs() <= tol).all())


def _columns(points: Tensor) -> Tensor:
    """(b, …, 2) as (b, 2, n)."""
    return points.reshape(len(points), -1, 2).mT.contiguous()


def _rows(parts: list[Tensor], points: Tensor) -> Tensor:
    """Parts (b, 2, n) side by side, in the shape of `points`."""
    return torch.cat(parts, dim=2).mT.reshape(-1, *points.shape[1:])


def _solve(slopes: list[Tensor], right: Tensor) -> Tensor:
    """(I + ∂D)⁻¹ right for right (b, 2, n), written out."""
    a, b, c, d = slopes[0] + 1.0, slopes[1], slopes[2], slopes[3] + 1.0
    x, y = right.unbind(dim=1)
    return torch.stack([d * x - b * y, a * y - c * x], dim=1) / (a * d - b * c)[:, None]


def _steepest(plate: ThinPlate, h: int, w: int) -> Tensor:
    """The largest ‖∂D‖₂ of each map on the frame and a quarter of it around."""
    unit = torch.linspace(-0.25, 1.25, 25, dtype=torch.float64)
    points = torch.cartesian_prod(unit * (w - 1), unit * (h - 1))
    slopes: Tensor = torch.linalg.matrix_norm(plate.slope(points[None]), ord=2)
    return slopes.amax(dim=1)


def _like(values: Tensor, like: Tensor | None) -> Tensor:
    """In the dtype and on the device of `like`; without it, in the default dtype."""
    return values.to(torch.get_default_dtype()) if like is None else values.to(like)
