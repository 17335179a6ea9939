"""Warps with known inverses: affine maps, thin-plate splines, and both in a row, drawn at random.

A warp T takes an image B to B′ = T(B). `backward` takes points of B′ to B, exactly, and is what makes the image;
`forward` takes points of B to B′ and says how far back-and-forth misses. All are batched: b maps side by side.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as nnf
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.errors import InputError, ShapeError
from likewise.pixels.geometry import Size, grid, inside, sample

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

    def image(
        self, B: Float[Tensor, "b c h w"], size: Size | None = None
    ) -> tuple[Float[Tensor, "b c h2 w2"], Bool[Tensor, "b h2 w2"]]:
        """B′[p] = B[T⁻¹(p)], of `size` (that of B by default), and where T⁻¹(p) lies inside B."""
        if B.ndim != 4 or len(B) != len(self):
            raise ShapeError(f"B: expected ({len(self)}, c, h, w), got {tuple(B.shape)}")
        h, w = B.shape[-2:]
        points = self.backward(grid(*(size or (h, w)), like=self.like)[None])
        return sample(B, points), inside(points, h, w)

    def then(self, second: Warp) -> Chain:
        """This warp first, `second` on what it made."""
        return Chain(self, second)


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
    cells: int = 3,
    like: Tensor | None = None,
    **affine: float,
) -> Chain:
    """b random affine maps, each followed by a random thin plate; the options are those of both."""
    first = random_affine(b, h, w, generator=generator, like=like, **affine)
    return Chain(first, random_thin_plate(b, h, w, generator=generator, strength=strength, cells=cells, like=like))


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
