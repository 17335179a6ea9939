"""Homography, fundamental and essential matrix and pose from matches with outliers, where chance cannot explain them.

The search is OpenCV's USAC with MAGSAC++: on graf, wall and leuven with mutual SIFT 13 of 15 pairs are within 5 px at
the corners at 1.1 CPU-ms a pair, with poselib 12 at 2.7. It draws from a fixed seed: the same matches give the same
answer. Inliers are counted here, in pixels and both ways: for H, H a within px of b and
H⁻¹ b of a; for F and E, both points within px of the other's epipolar line.

A model is returned only where its inliers beat two kinds of chance; `Model.log_nfa` is the larger of both logarithms.
Uniform matches [Moisan & Stival 2004]: NFA = (n − s) C(n, k) C(k, s) α^(k − s), the expected number of models with k of
n inliers, α the share of the image within px of a point (H) or of a line (F), s what a minimal sample takes. Smooth
matches: a learned matcher gives photos of different places matches that move together, as trees or a horizon do, and
any model fits what lies on one spot or line. So inliers count once a cell, and by how far they spread beyond px:
E = (cells − s) Σ log₁₀ max(1, 0.3 σᵢ / px) over their principal axes (H: both, F: the shorter), whose tail was measured
on unrelated photos.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import gammaln

from likewise.errors import InputError, ShapeError
from likewise.pixels.metrics import plain

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Points: TypeAlias = tuple[Floats, Floats]
Sizes: TypeAlias = tuple[tuple[int, int], tuple[int, int]]

SEED = 0
"""What the search draws from, unless another seed is asked for."""
ROUNDS = {"homography": 30_000, "fundamental": 10_000, "essential": 10_000}
"""Samples at most. A tenth of 500 matches on a plane take more than 10,000, and 30,000 cost 5 ms at worst."""
CONFIDENCE = 0.9999
LEAST = {"homography": 4, "fundamental": 8, "essential": 5}
"""The fewest matches that determine each of them (8 for F, as 7 leave up to three answers)."""
SAMPLE = {"homography": 4, "fundamental": 7, "essential": 5}
"""Matches of a minimal sample, which fit whatever they are."""
HANDICAP = 1.2
"""How many times the inliers of H an F must have to be taken instead."""
LOG_NFA = -3.0
"""A model is believed where chance gives one as good in fewer than 1 of 1,000 pairs."""
SMOOTH = 0.3
"""Matches of unrelated photos follow a model to about this share of their spread."""
LINE = 2.0
"""Inliers whose shorter axis (standard deviation) is below this many px lie on one line, which determines no plane."""
CELL = {"homography": 16 / 3, "fundamental": 8.0, "essential": 8.0}
"""The side of a cell, in px: 16 and 8 pixels at the usual 3 and 1. Inliers count once a cell."""
TAIL = {"homography": (1.0, 6.5), "fundamental": (1.0, 11.0), "essential": (1.0, 11.0)}
"""log₁₀ of the share of unrelated pairs whose evidence is above E is about −(t₀ + E / t₁)."""


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A matrix (3, 3) that matches agree on and which of them do; no matrix, and the reason, where chance explains it.

    Of a pose the matrix is E, and R (3, 3) and t (3,) of unit length are those with X_b = R X_a + t. `log_nfa` is
    log₁₀ of how many models as good chance gives a pair; above −3 there is none. A model is true where there is one.
    """

    kind: str
    matrix: Floats | None
    inliers: Mask
    reason: str = ""
    R: Floats | None = None
    t: Floats | None = None
    log_nfa: float = 0.0

    def __bool__(self) -> bool:
        return self.matrix is not None

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


def homography(a: Any, b: Any, px: float = 3.0, *, seed: int = SEED, sizes: Sizes | None = None) -> Model:
    """H with b ≃ H a, scaled to H₃₃ = 1, where more matches agree on it than chance gives.

    Parameters
    ----------
    a, b : array (n, 2)
        Matching points, x then y.
    px : float
        The error in pixels, in either image, up to which a match is an inlier.
    seed : int
        What the search draws from.
    sizes : ((h, w), (h, w)), optional
        The sizes of both images, over which chance would spread the matches; by default the boxes around the points.

    Returns
    -------
    Model
        Without a matrix, and with the reason, where too few matches agree.

    Raises
    ------
    InputError
        Where the points, px or sizes are not of that form.

    Examples
    --------
    >>> import numpy as np
    >>> from likewise.pixels import robust
    >>> a = np.random.default_rng(0).uniform(0, 500, (60, 2))
    >>> robust.homography(a, a + [3.0, -2.0])
    Model(homography of 60 of 60 matches)
    >>> bool(robust.homography(a, a[::-1]))
    False
    """
    p, q = _matches(a, b, px)
    areas = _areas(p, q, sizes)
    if reason := _too_few("homography", p, q):
        return _none("homography", len(p), reason)
    H = _tried(cv2.findHomography, p, q, _search("homography", px, seed))
    if H is None or abs(np.linalg.det(H)) < 1e-12 * np.linalg.norm(H) ** 3:
        return _none("homography", len(p), f"no plane fits 4 of the {len(p)} matches to {px:g} px")
    H = H / (H[2, 2] if abs(H[2, 2]) > 1e-12 * np.linalg.norm(H) else np.linalg.norm(H))
    return _judged("homography", H, transfer_errors(H, p, q), (p, q), px, areas)


def fundamental(a: Any, b: Any, px: float = 1.0, *, seed: int = SEED, sizes: Sizes | None = None) -> Model:
    """F of unit norm and rank 2 with [b, 1] F [a, 1]ᵀ = 0, where more matches agree on it than chance gives.

    There is none where a plane, or a camera that only turned, explains the matches: any epipole would do.
    Parameters as for `homography`.
    """
    p, q = _matches(a, b, px)
    areas = _areas(p, q, sizes)
    if reason := _too_few("fundamental", p, q):
        return _none("fundamental", len(p), reason)
    F = _tried(cv2.findFundamentalMat, p, q, _search("fundamental", px, seed))
    if F is None or not np.linalg.norm(F) > 0:
        return _none("fundamental", len(p), f"no fundamental matrix fits 8 of the {len(p)} matches to {px:g} px")
    near = _fundamentals(F / np.linalg.norm(F), p, q)
    F = near(_polished(near, 7, p, q, px))
    F = F / np.linalg.norm(F)
    model = _judged("fundamental", F, epipolar_errors(F, p, q), (p, q), px, areas)
    if model:
        search = _search("homography", OFF_PLANE * px, seed)
        H = _tried(cv2.findHomography, p[model.inliers], q[model.inliers], search)
        if H is not None and not _parallax(model.inliers, transfer_errors(H, p, q), px, areas):
            return _none("fundamental", len(p), "one plane, or a camera that only turned, explains the matches: any F")
    return model


def geometry(
    a: Any, b: Any, plane: float = 3.0, line: float = 1.0, *, seed: int = SEED, sizes: Sizes | None = None
) -> Model:
    """H to `plane` px or F to `line` px, whichever chance cannot explain; of both, the one with more inliers.

    A point is free to slide along its epipolar line, so F must have a fifth more. Of two that find nothing it is H,
    with its reason.
    """
    H, F = homography(a, b, plane, seed=seed, sizes=sizes), fundamental(a, b, line, seed=seed, sizes=sizes)
    return F if F.n > HANDICAP * H.n else H


def inlier_models(
    a: Any, b: Any, px: float = 3.0, *, seed: int = SEED, sizes: Sizes | None = None, most: int = 4
) -> list[Model]:
    """Homographies one after the other, each of the matches that the ones before left over, `most` at most.

    Every one beats chance by itself; their inliers are masks over all matches and do not overlap.
    """
    p, q = _matches(a, b, px)
    sizes = sizes or _boxes(p, q)
    left, models = np.arange(len(p)), list[Model]()
    while len(models) < most and (model := homography(p[left], q[left], px, seed=seed, sizes=sizes)):
        inliers = np.zeros(len(p), dtype=bool)
        inliers[left[model.inliers]] = True
        models.append(replace(model, inliers=inliers))
        left = left[~model.inliers]
    return models


def essential(
    a: Any, b: Any, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = SEED, sizes: Sizes | None = None
) -> Model:
    """E of unit norm with [b, 1] Kb⁻ᵀ E Ka⁻¹ [a, 1]ᵀ = 0, by the five-point method, where it beats chance."""
    p, q = _matches(a, b, px)
    areas = _areas(p, q, sizes)
    one, two = camera("Ka", Ka), camera("Kb", Kb)
    if reason := _too_few("essential", p, q):
        return _none("essential", len(p), reason)
    focal = float(np.mean([one[0, 0], one[1, 1], two[0, 0], two[1, 1]]))
    eye, straight = np.eye(3), np.zeros(4)
    x, y = rays(one, p)[:, :2], rays(two, q)[:, :2]
    E = _tried(cv2.findEssentialMat, x, y, eye, eye, straight, straight, _search("essential", px / focal, seed))
    if E is None or not np.linalg.norm(E) > 0:
        return _none("essential", len(p), f"no essential matrix fits 5 of the {len(p)} matches to {px:g} px")
    near = _essentials(E)
    E = near(_polished(lambda step: _in_pixels(near(step), one, two), 5, p, q, px))
    return _judged("essential", E, epipolar_errors(_in_pixels(E, one, two), p, q), (p, q), px, areas)


def pose(a: Any, b: Any, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = SEED, sizes: Sizes | None = None) -> Model:
    """R, t of the essential matrix: of its four readings the one with most inliers before both cameras.

    There is none where the camera only turned: t could point anywhere.
    """
    model = essential(a, b, Ka, Kb, px, seed=seed, sizes=sizes)
    if model.matrix is None:
        return _none("pose", len(model.inliers), model.reason, model.log_nfa)
    (p, q), one, two = _matches(a, b, px), camera("Ka", Ka), camera("Kb", Kb)
    x, y = rays(one, p), rays(two, q)
    turn = two @ _turn(x[model.inliers], y[model.inliers]) @ np.linalg.inv(one)
    if not _parallax(model.inliers, transfer_errors(turn, p, q), px, _areas(p, q, sizes)):
        return _none("pose", len(p), "the camera only turned, as far as the matches tell: t could point anywhere")
    readings = [(R, t, model.inliers & in_front(R, t, x, y)) for R, t in decomposed(model.matrix)]
    R, t, kept = max(readings, key=lambda r: int(r[2].sum()))
    if kept.sum() < LEAST["essential"]:
        return _none("pose", len(p), f"only {int(kept.sum())} of {model.n} inliers lie before both cameras")
    return Model("pose", model.matrix, kept, "", R, t, model.log_nfa)


# -------------------------------------------------------------------------------------------------------------- chance


def _judged(
    kind: str, matrix: Floats, errors: Floats, points: tuple[Floats, Floats], px: float, areas: Floats
) -> Model:
    """The model of the matches with errors up to px, or none where chance explains them."""
    inliers, s = errors <= px, SAMPLE[kind]
    k, n = int(inliers.sum()), len(errors)
    if k <= s:
        return _none(kind, n, f"only {k} of {n} matches agree to {px:g} px, and any {s} do")
    alpha, (cells, spread) = _share(kind, px, areas), _evidence(kind, inliers, points, px)
    t0, t1 = TAIL[kind]
    smooth = -(t0 + max(cells - s, 0) * spread / t1)
    distinct = np.unique(np.column_stack([*points, inliers]), axis=0)
    uniform = float(_log_nfa(len(distinct), np.array(distinct[:, 4].sum()), s, alpha))
    log_nfa = max(smooth, uniform)
    if log_nfa <= LOG_NFA:
        return Model(kind, matrix, inliers, log_nfa=log_nfa)
    article = "an" if kind == "essential" else "a"
    words = f"{k} of {n} matches fit {article} {kind}" + (" matrix" if kind != "homography" else "")
    if spread == 0:
        return _none(kind, n, f"{words}, but lie on one spot or line, where chance gives that", log_nfa)
    wanted = s - (LOG_NFA + t0) * t1 / spread
    more = np.arange(k, n + 1)
    enough = more[_log_nfa(n, more, s, alpha) <= LOG_NFA]
    needed = max(int(np.ceil(k * max(1.0, wanted / max(cells, 1)))), int(enough[0]) if len(enough) else n + 1)
    return _none(kind, n, f"{words}, no more than chance gives (1 in 1,000 needs {needed})", log_nfa)


def _log_nfa(n: int, k: NDArray[Any], s: int, alpha: float) -> Floats:
    """log₁₀ (n − s) C(n, k) C(k, s) α^(k − s): how many such models uniform matches give."""
    choices = gammaln(n + 1) - gammaln(n - k + 1) - gammaln(s + 1) - gammaln(k - s + 1)
    return np.asarray(np.log10(max(n - s, 1)) + choices / np.log(10) + (k - s) * np.log10(alpha))


def _share(kind: str, px: float, areas: Floats) -> float:
    """The share of the image within px of a point or of a line as long as the diagonal; of the smaller image."""
    h, w = areas
    share = np.pi * px**2 / (h * w) if kind == "homography" else 2 * px * np.hypot(h, w) / (h * w)
    return float(np.clip(share, 1e-12, 1.0).max())


def _evidence(kind: str, inliers: Mask, points: Points, px: float) -> tuple[int, float]:
    """How many cells the inliers take, and log₁₀ of how far beyond px they spread; of both images the lesser."""
    cells, spreads, widths = [], [], []
    for side in points:
        x = side[inliers]
        cells.append(len(np.unique(np.floor((x - x.min(axis=0)) / (CELL[kind] * px)), axis=0)))
        axes = np.sqrt(np.maximum(np.linalg.eigvalsh(np.cov(x.T)), 0.0))
        widths.append(axes[0] / px)
        spreads.append(np.log10(np.maximum(1.0, SMOOTH * axes / px)))
    if min(widths) < LINE:
        return min(cells), 0.0
    shorter, longer = np.min(spreads, axis=0)
    return min(cells), float(shorter + longer if kind == "homography" else shorter)


OFF_PLANE = 3.0
"""A match farther than this many px from where a plane puts it is not of that plane."""


def _parallax(inliers: Mask, errors: Floats, px: float, areas: Floats) -> bool:
    """Whether more inliers of F lie off the plane (by its errors) than lines through an epipole meet by chance."""
    off = errors > OFF_PLANE * px
    k = int((inliers & off).sum())
    return k > 2 and float(_log_nfa(int(off.sum()), np.array(k), 2, _share("fundamental", px, areas))) <= LOG_NFA


def _turn(x: Floats, y: Floats) -> Floats:
    """The rotation that best turns the rays x to the rays y."""
    one, two = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    U, _, Vt = np.linalg.svd(two.T @ one)
    return np.asarray(U @ np.diag([1.0, 1.0, np.linalg.det(U @ Vt)]) @ Vt)


def _boxes(a: Floats, b: Floats) -> Sizes:
    """The boxes around the points, as sizes."""
    one, two = (np.ceil(np.ptp(p, axis=0) + 1).astype(int) if len(p) else np.ones(2, int) for p in (a, b))
    return (int(one[1]), int(one[0])), (int(two[1]), int(two[0]))


def _areas(a: Floats, b: Floats, sizes: Sizes | None) -> Floats:
    """Heights and widths (2, 2) of both images."""
    try:
        sides = np.asarray(_boxes(a, b) if sizes is None else sizes, dtype=np.float64)
    except (TypeError, ValueError):
        sides = np.empty(0)
    if sides.shape != (2, 2) or not (np.isfinite(sides).all() and (sides > 0).all()):
        raise InputError(f"sizes: expected ((h, w), (h, w)) of both images in pixels, got {sizes!r}")
    return sides.T


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


def transfer_errors(H: Floats, a: Floats, b: Floats) -> Floats:
    """The larger of ‖H a − b‖ and ‖H⁻¹ b − a‖, in pixels; infinite behind H's horizon, seen from the best matches."""
    try:
        back = np.asarray(np.linalg.inv(H), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full(len(a), np.inf)
    errors = np.maximum(homography_errors(H, a, b), homography_errors(back, b, a))
    front = a @ H[2, :2] + H[2, 2] > 0
    best = front[np.argsort(errors, kind="stable")[:8]]
    return np.where(front == (2 * best.sum() > len(best)), errors, np.inf)


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


def _search(kind: str, px: float, seed: int) -> Any:
    """OpenCV's MAGSAC++ with a seed of its own, so that no global state counts."""
    options = cv2.UsacParams()
    options.threshold, options.maxIterations, options.confidence = px, ROUNDS[kind], CONFIDENCE
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


def _none(kind: str, n: int, reason: str, log_nfa: float = 0.0) -> Model:
    return Model(kind, None, np.zeros(n, dtype=bool), reason, log_nfa=log_nfa)
