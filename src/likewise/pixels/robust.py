"""Homography, fundamental and essential matrix and pose from matches with outliers, by OpenCV's USAC with MAGSAC++.

The same matches give the same answer: the search draws from a fixed seed. Too few or degenerate matches give an empty
result that says why, never an exception of OpenCV. Inliers are counted here, in pixels: for H, ‖H a − b‖ ≤ px; for F
and E, both points within px of the other's epipolar line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from likewise.errors import InputError, ShapeError
from likewise.pixels.metrics import plain

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

SEED = 0
"""What the search draws from, unless another seed is asked for."""
ROUNDS = 10_000
CONFIDENCE = 0.9999
LEAST = {"homography": 4, "fundamental": 8, "essential": 5}
"""The fewest matches that determine each of them (8 for F, as 7 leave up to three answers)."""
HANDICAP = 1.2
"""How many times the matches of H an F must find to be believed."""


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A matrix (3, 3) that matches agree on and which of them do; no matrix, and the reason, where there is none.

    Of a pose the matrix is E, and R (3, 3) and t (3,) of unit length are those with X_b = R X_a + t.
    """

    kind: str
    matrix: Floats | None
    inliers: Mask
    reason: str = ""
    R: Floats | None = None
    t: Floats | None = None

    @property
    def n(self) -> int:
        """How many matches agree."""
        return int(self.inliers.sum())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if self.matrix is None:
            raise InputError(f"{self.kind}: there is none: {self.reason}")
        return np.array(self.matrix, dtype=dtype)

    def __repr__(self) -> str:
        if self.matrix is None:
            return f"Model(no {self.kind}: {self.reason})"
        return f"Model({self.kind} of {self.n} of {len(self.inliers)} matches)"


# ------------------------------------------------------------------------------------------------------------ estimates


def homography(a: Any, b: Any, px: float = 3.0, *, seed: int = SEED) -> Model:
    """H with b ≃ H a, scaled to H₃₃ = 1, by MAGSAC++; px is where an error stops being noise."""
    p, q = _matches(a, b, px)
    if reason := _too_few("homography", p, q):
        return _none("homography", len(p), reason)
    H = _tried(cv2.findHomography, p, q, _search(px, seed))
    if H is None or abs(np.linalg.det(H)) < 1e-12 * np.linalg.norm(H) ** 3:
        return _none("homography", len(p), f"no plane fits 4 of the {len(p)} matches to {px:g} px")
    H = H / (H[2, 2] if abs(H[2, 2]) > 1e-12 * np.linalg.norm(H) else np.linalg.norm(H))
    return _model_of("homography", H, homography_errors(H, p, q), px)


def fundamental(a: Any, b: Any, px: float = 1.0, *, seed: int = SEED) -> Model:
    """F of unit norm and rank 2 with [b, 1] F [a, 1]ᵀ = 0, by MAGSAC++."""
    p, q = _matches(a, b, px)
    if reason := _too_few("fundamental", p, q):
        return _none("fundamental", len(p), reason)
    F = _tried(cv2.findFundamentalMat, p, q, _search(px, seed))
    if F is None or not np.linalg.norm(F) > 0:
        return _none("fundamental", len(p), f"no fundamental matrix fits 8 of the {len(p)} matches to {px:g} px")
    near = _fundamentals(F / np.linalg.norm(F), p, q)
    F = near(_polished(near, 7, p, q, px))
    F = F / np.linalg.norm(F)
    return _model_of("fundamental", F, epipolar_errors(F, p, q), px)


def geometry(a: Any, b: Any, plane: float = 3.0, line: float = 1.0, *, seed: int = SEED) -> Model:
    """H to `plane` px or F to `line` px, whichever more matches agree with.

    A point is free to slide along its epipolar line, so chance matches agree with an F more often than with an H: F
    must find a fifth more. Of two that find nothing it is H, with its reason.
    """
    H, F = homography(a, b, plane, seed=seed), fundamental(a, b, line, seed=seed)
    return F if F.n > HANDICAP * H.n else H


def essential(a: Any, b: Any, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = SEED) -> Model:
    """E of unit norm with [b, 1] Kb⁻ᵀ E Ka⁻¹ [a, 1]ᵀ = 0, by MAGSAC++ on the five-point method."""
    p, q = _matches(a, b, px)
    one, two = camera("Ka", Ka), camera("Kb", Kb)
    if reason := _too_few("essential", p, q):
        return _none("essential", len(p), reason)
    focal = float(np.mean([one[0, 0], one[1, 1], two[0, 0], two[1, 1]]))
    eye, straight = np.eye(3), np.zeros(4)
    x, y = rays(one, p)[:, :2], rays(two, q)[:, :2]
    E = _tried(cv2.findEssentialMat, x, y, eye, eye, straight, straight, _search(px / focal, seed))
    if E is None or not np.linalg.norm(E) > 0:
        return _none("essential", len(p), f"no essential matrix fits 5 of the {len(p)} matches to {px:g} px")
    near = _essentials(E)
    E = near(_polished(lambda step: _in_pixels(near(step), one, two), 5, p, q, px))
    return _model_of("essential", E, epipolar_errors(_in_pixels(E, one, two), p, q), px)


def pose(a: Any, b: Any, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = SEED) -> Model:
    """R, t of the essential matrix: of its four readings the one with most inliers before both cameras."""
    model = essential(a, b, Ka, Kb, px, seed=seed)
    if model.matrix is None:
        return _none("pose", len(model.inliers), model.reason)
    p, q = _matches(a, b, px)
    x, y = rays(camera("Ka", Ka), p), rays(camera("Kb", Kb), q)
    readings = [(R, t, model.inliers & in_front(R, t, x, y)) for R, t in decomposed(model.matrix)]
    R, t, kept = max(readings, key=lambda r: int(r[2].sum()))
    if kept.sum() < LEAST["essential"]:
        return _none("pose", len(p), f"only {int(kept.sum())} of {model.n} inliers lie before both cameras")
    return Model("pose", model.matrix, kept, "", R, t)


# ----------------------------------------------------------------------------------------------------------- geometry


def rays(K: Floats, points: Floats) -> Floats:
    """K⁻¹ [x, 1]ᵀ of points (n, 2): (n, 3) with third coordinate 1."""
    return np.asarray(np.linalg.solve(K, np.column_stack([points, np.ones(len(points))]).T).T)


def homography_errors(H: Floats, a: Floats, b: Floats) -> Floats:
    """‖H a − b‖ in pixels; infinite where H sends a to infinity."""
    mapped = np.column_stack([a, np.ones(len(a))]) @ H.T
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - b, axis=1)
    return np.where(np.isfinite(errors), errors, np.inf)


def epipolar_errors(F: Floats, a: Floats, b: Floats) -> Floats:
    """The larger of the distances of b from the line F a and of a from the line Fᵀ b, in pixels."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    there, back = x @ F.T, y @ F
    residual = np.abs(np.einsum("ni,ni->n", y, there))
    shorter = np.minimum(np.hypot(there[:, 0], there[:, 1]), np.hypot(back[:, 0], back[:, 1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = residual / shorter
    return np.where(np.isfinite(errors), errors, np.where(residual == 0, 0.0, np.inf))


def decomposed(E: Floats) -> list[tuple[Floats, Floats]]:
    """The four (R, t) with E ∝ [t]ₓ R."""
    one, two, t = cv2.decomposeEssentialMat(E)
    return [(np.array(R, np.float64), np.array(s * t[:, 0], np.float64)) for R in (one, two) for s in (1.0, -1.0)]


def in_front(R: Floats, t: Floats, x: Floats, y: Floats) -> Mask:
    """Whether rays x of a and y of b meet at positive depth λ in both: λ_b y = λ_a R x + t, solved crosswise."""
    turned = x @ R.T
    across = np.cross(y, turned)
    depth_a = np.einsum("ni,ni->n", np.cross(t, y), across)
    depth_b = np.einsum("ni,ni->n", np.cross(t, turned), across)
    return np.asarray((depth_a > 0) & (depth_b > 0))


def sampson_errors(F: Floats, a: Floats, b: Floats) -> Floats:
    """[b, 1] F [a, 1]ᵀ over the norm of its gradient, in pixels with a sign: to first order, how far a match is off."""
    x, y = (np.column_stack([p, np.ones(len(p))]) for p in (a, b))
    there, back = x @ F.T, y @ F
    slope = np.sqrt((there[:, :2] ** 2).sum(axis=1) + (back[:, :2] ** 2).sum(axis=1))
    return np.asarray(np.einsum("ni,ni->n", y, there) / np.maximum(slope, np.finfo(np.float64).tiny))


def _in_pixels(E: Floats, Ka: Floats, Kb: Floats) -> Floats:
    """Kb⁻ᵀ E Ka⁻¹."""
    return np.asarray(np.linalg.inv(Kb).T @ E @ np.linalg.inv(Ka))


def _polished(at: Callable[[Floats], Floats], n: int, a: Floats, b: Floats, px: float) -> Floats:
    """The numbers that move a matrix to the least Sampson errors of its inliers; OpenCV's own polish is rough.

    `at` gives the matrix in pixels for n numbers, 0 to begin with. Twice, as better matrices have more inliers; a move
    is taken only if not fewer matches agree.
    """
    best = np.zeros(n)
    for _ in range(2):
        kept = epipolar_errors(at(best), a, b) <= px
        if kept.sum() <= n:
            break
        x, y = a[kept], b[kept]
        fit = least_squares(
            lambda step, x=x, y=y: sampson_errors(at(step), x, y),
            best, loss="soft_l1", f_scale=px / 2, max_nfev=20, x_scale=1e-3,
        )  # fmt: skip
        if (epipolar_errors(at(fit.x), a, b) <= px).sum() < kept.sum():
            break
        best = fit.x
    return best


def _essentials(E: Floats) -> Callable[[Floats], Floats]:
    """Essential matrices around one, by five numbers: three turn R, two tilt t."""
    R, t = decomposed(E)[0]
    _, _, axes = np.linalg.svd(t[None])

    def at(step: Floats) -> Floats:
        tilted = t + step[3:] @ axes[1:]
        across = np.cross(np.eye(3), -tilted / np.linalg.norm(tilted))
        return np.asarray(across @ cv2.Rodrigues(step[:3])[0] @ R / np.sqrt(2.0))

    return at


def _fundamentals(F: Floats, a: Floats, b: Floats) -> Callable[[Floats], Floats]:
    """Matrices of rank 2 around one, by seven numbers: U and V of its SVD are turned, and σ₂/σ₁ is changed.

    In coordinates of zero mean and unit spread, where turns by equal angles weigh about the same.
    """
    Ta, Tb = _spread(a), _spread(b)
    U, S, Vt = np.linalg.svd(np.linalg.inv(Tb).T @ F @ np.linalg.inv(Ta))
    angle = np.arctan2(S[1], S[0])

    def at(step: Floats) -> Floats:
        values = np.array([np.cos(angle + step[6]), np.sin(angle + step[6]), 0.0])
        first, second = cv2.Rodrigues(step[:3])[0], cv2.Rodrigues(step[3:6])[0]
        return np.asarray(Tb.T @ (U @ first * values) @ second @ Vt @ Ta)

    return at


def _spread(points: Floats) -> Floats:
    """The affine map (3, 3) to zero mean and a root mean square of √2."""
    mean = points.mean(axis=0)
    s = np.sqrt(2.0 / ((points - mean) ** 2).sum(axis=1).mean())
    return np.array([[s, 0.0, -s * mean[0]], [0.0, s, -s * mean[1]], [0.0, 0.0, 1.0]])


# -------------------------------------------------------------------------------------------------------------- pieces


def camera(name: str, K: Any) -> Floats:
    """A camera matrix (3, 3) as float64, or an InputError."""
    matrix = plain(K).astype(np.float64)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise ShapeError(f"{name}: expected a finite camera matrix (3, 3), got shape {matrix.shape}")
    if not (matrix[0, 0] > 0 and matrix[1, 1] > 0 and np.allclose(matrix[2], [0, 0, 1])):
        raise InputError(f"{name}: expected [[f, s, x], [0, f, y], [0, 0, 1]] with f > 0, got {matrix.tolist()}")
    return matrix


def _matches(a: Any, b: Any, px: float) -> tuple[Floats, Floats]:
    p, q = (np.ascontiguousarray(v, dtype=np.float64) for v in (a, b))
    if p.size == 0 and q.size == 0:
        p, q = np.empty((0, 2)), np.empty((0, 2))
    if p.ndim != 2 or p.shape[1:] != (2,) or p.shape != q.shape:
        raise ShapeError(f"a, b: expected points (n, 2), as many in each, got shapes {p.shape} and {q.shape}")
    if not np.isfinite(px) or px <= 0:
        raise InputError(f"px: expected a number of pixels > 0, got {px!r}")
    return p, q


def _too_few(kind: str, a: Floats, b: Floats) -> str:
    """Why these matches cannot determine anything, or nothing."""
    least = LEAST[kind]
    if len(a) < least:
        return f"{least} matches at least are needed, got {len(a)}"
    for name, points in (("a", a), ("b", b)):
        distinct = len(np.unique(points, axis=0))
        if distinct < least:
            return f"{least} distinct points at least are needed, {name} has {distinct}"
        spread = np.linalg.svd(points - points.mean(axis=0), compute_uv=False)
        if spread[1] < 1e-6 * spread[0]:
            return f"all points of {name} lie on one line"
    return ""


def _search(px: float, seed: int) -> Any:
    """OpenCV's MAGSAC++ with a seed of its own, so that no global state counts."""
    options = cv2.UsacParams()
    options.threshold, options.maxIterations, options.confidence = px, ROUNDS, CONFIDENCE
    options.score, options.loMethod = cv2.SCORE_METHOD_MAGSAC, cv2.LOCAL_OPTIM_SIGMA
    options.loIterations, options.loSampleSize = 10, 50
    options.final_polisher, options.final_polisher_iterations = cv2.MAGSAC, 10
    options.sampler, options.neighborsSearch = cv2.SAMPLING_UNIFORM, cv2.NEIGH_GRID
    options.isParallel, options.randomGeneratorState = False, seed
    return options


def _tried(search: Any, *arguments: Any) -> Floats | None:
    """What a search of OpenCV finds: a finite (3, 3) matrix, or None, also where OpenCV gives up by an exception."""
    try:
        matrix = search(*arguments)[0]
    except cv2.error:
        return None
    if matrix is None or np.shape(matrix) != (3, 3) or not np.isfinite(matrix).all():
        return None
    return np.asarray(matrix, dtype=np.float64)


def _model_of(kind: str, matrix: Floats, errors: Floats, px: float) -> Model:
    inliers = errors <= px
    if inliers.sum() < LEAST[kind]:
        return _none(kind, len(errors), f"only {int(inliers.sum())} of {len(errors)} matches agree to {px:g} px")
    return Model(kind, matrix, inliers)


def _none(kind: str, n: int, reason: str) -> Model:
    return Model(kind, None, np.zeros(n, dtype=bool), reason)
