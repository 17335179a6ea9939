"""Multi-level metric learning, equation by equation: options, neighbours, objective, gradient, solvers, rounds.

The unknowns are one array of blocks (1 + T, d, d): blocks[0] is M0, shared by all; blocks[1 + t] is Mt, the part of
level t. Signature i is compared under M0 + M_ℓ(i) [MLML Eq. 10]. The global model [MLML Eq. 9] has T = 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from likewise import numeric
from likewise.errors import ConfigError, InputError
from likewise.sets import transport
from likewise.sets.transport.solvers import Index, Pack, Solutions
from likewise.train.options import option
from likewise.types import Array

MARGIN = 1.0
"""The margin of the hinge. ν in the paper's R′ [MLML Eq. 15] is this same 1 (erratum 6)."""

HUBER = 0.2
"""Width over which the solvers that need a smooth objective round the corner of the hinge."""

SMALL = 0.01
"""Mt starts at 0.01 I: the paper's Mt = I would start every level at 2 I (erratum 4)."""

CHUNK = 200_000
"""Pairs solved in one call where only values are kept, so that memory stays bounded."""

Record = dict[str, Any]
Steps = Iterator[tuple[Array, Record]]
"""What a solver yields: the blocks after an iteration, and a record of it."""
Rho = tuple[float, float]
Watch = Callable[[Record], None]
"""Told of every step: `stage` says of what ("choice" or "learning"), the rest are its figures."""
Kept = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and JSON: what a finished part of a fit leaves."""
Remember = Callable[[str, Callable[[], Kept]], Kept]
"""Gives what a part of a fit left before under this name, or makes it and keeps it: a stopped fit then goes on."""


@dataclass(eq=False, repr=False)
class LMNNOptions:
    """The options of WassersteinLMNN, which says what each means; learning reads them without the estimator."""

    multilevel: bool = option(True, "one metric a level on top of the shared one; False learns the shared one alone")
    gamma: float | str = option(
        "auto", "smoothing of the plan, in units of its cost", above=0, high=1e12, choices=("auto",)
    )
    value: Literal["kl", "paper", "divergence", "sharp"] = option(
        "divergence", "which number of the plan is the distance"
    )
    k_targets: int = option(5, "nearest sets of the same class that are pulled closer", low=1)
    k_impostors: int = option(40, "nearest sets of other classes that are pushed away", low=1)
    mu: float = option(0.5, "weight of pushing against pulling", low=0, high=1)
    rho0: float | str = option("auto", "how strongly M0 is held to the start", low=0, high=1e12, choices=("auto",))
    rhot: float | str = option("auto", "how strongly each Mt is held to zero", low=0, high=1e12, choices=("auto",))
    normalize: bool = option(True, "means instead of the paper's sums, points scaled to median squared distance 1")
    start: Literal["auto", "identity", "whitened"] = option(
        "auto", "the metric that learning starts from and is held to: I, or that of matched points of one class"
    )
    init: Literal["identity", "paper"] = option("identity", "start at Mt = 0.01 I, or at I as printed")
    solver: Literal["auto", "lbfgs", "fista", "paper"] = option(
        "auto", "auto: lbfgs for the global model, else fista; paper: the alternation as printed"
    )
    rule: Literal["gallery", "global", "mean", "auto"] = option("gallery", "whose metric decides at test time")
    max_iter: int = option(20, "iterations a round", low=0)
    rounds: int = option(3, "rounds; each finds the impostors again under the metric so far", low=1)
    tol: float = option(1e-6, "marginal error at which a transport problem is solved", above=0, high=0.1)
    n_neighbors: int = option(1, "neighbours that vote", low=1)
    n_jobs: int = option(1, "threads that solve transport problems; -1 is all cores", low=-1)
    seed: int = option(0, "seed of the inner folds that choose what is auto", low=0)
    verbose: bool = option(False, "print a line a round")
    n_components: int | None = option(None, "learn on so many principal axes; None: on all coordinates", low=1)

    def minimise(self, J: Objective, blocks: Array) -> Steps:
        """The steps of the solver from these blocks on."""
        if self.solver == "paper":
            return alternation(J, blocks, self.max_iter)
        if self.solver == "fista" or (self.solver == "auto" and J.levels):
            return fista(J, blocks, self.max_iter)
        return lbfgs(J, blocks, self.max_iter)


@dataclass(frozen=True)
class Coefficients:
    """The numbers in front of the four parts of J; `pull` and `push` are already divided by |S| and |R| if wanted."""

    hold: float
    """in front of ‖M0 − I‖²"""
    levels: float
    """in front of each ‖Mt‖²"""
    pull: float
    push: float

    @staticmethod
    def of(rho0: float, rhot: float, mu: float, targets: int, triplets: int, dim: int, normalize: bool) -> Coefficients:
        """Means and ρ/d when normalised; else the raw sums of the paper [MLML Eq. 13]."""
        if not normalize:
            return Coefficients(rho0, rhot, 1 - mu, mu)
        return Coefficients(rho0 / dim, rhot / dim, (1 - mu) / max(targets, 1), mu / max(triplets, 1))


def ramp(z: Array, width: float = 0.0) -> tuple[Array, Array]:
    """φ(z) and φ′(z) of the hinge [z]₊; with width > 0 of its Huber form z²/2w on (0, w), z − w/2 above."""
    if width <= 0:
        return np.maximum(z, 0.0), (z > 0).astype(np.float64)
    inside = np.clip(z, 0.0, width)
    return inside**2 / (2 * width) + np.maximum(z - width, 0.0), inside / width


# ── neighbours: S and R ───────────────────────────────────────────────────────────────────────────────────────────


def distances(X: Pack, Y: Pack, left: Index, right: Index, gamma: float, **how: Any) -> Array:
    """The values of the pairs (X[left], Y[right]), in bounded memory; `how` is that of `transport.solve_pairs`."""
    out = np.empty(len(left))
    for lo in range(0, len(left), CHUNK):
        part = slice(lo, lo + CHUNK)
        out[part] = transport.solve_pairs(X, Y, left[part], right[part], gamma, **how).value
    return out


def targets(y: Index, k: int, distance: Callable[[Index, Index], Array]) -> Index:
    """S (s, 2): for each signature i its k nearest j of the same class, in ascending distance."""
    pairs = []
    for c in np.unique(y):
        members = np.flatnonzero(y == c)
        i, j = (side.ravel() for side in np.meshgrid(members, members, indexing="ij"))
        upper = i < j
        flat = np.full(len(i), np.inf)
        flat[upper] = distance(i[upper], j[upper])
        D = flat.reshape(len(members), -1)
        D = np.minimum(D, D.T)
        take = min(k, len(members) - 1)
        nearest = np.argsort(D, axis=1, kind="stable")[:, :take]
        pairs.append(np.stack([np.repeat(members, take), members[nearest].ravel()], axis=1))
    S = np.concatenate(pairs)
    return S[np.argsort(S[:, 0], kind="stable")].astype(np.int64)


def impostors(y: Index, k: int, means: Array, distance: Callable[[Index, Index], Array], rows: Index) -> Index:
    """(n, 2): for each signature i in `rows` its k nearest of other classes.

    Only the sets whose means lie nearest are solved (at least 50, at least 5 k): a mean is a lower bound of the
    distance under value="kl", and with fewer than that many candidates the answer is exact.
    """
    pool = max(50, 5 * k)
    D = numeric.squared_distances(means[rows], means)
    D[y[rows][:, None] == y[None, :]] = np.inf
    count = min(pool, int((np.inf > D).sum(axis=1).min()))
    if count == 0:
        return np.empty((0, 2), dtype=np.int64)
    near = np.argpartition(D, count - 1, axis=1)[:, :count]
    near.sort(axis=1)
    W = distance(np.repeat(rows, count), near.ravel()).reshape(len(rows), count)
    take = min(k, count)
    chosen = np.take_along_axis(near, np.argsort(W, axis=1, kind="stable")[:, :take], axis=1)
    return np.stack([np.repeat(rows, take), chosen.ravel()], axis=1).astype(np.int64)


def triplets(S: Index, I: Index) -> Index:
    """R (r, 3): every target pair (i, j) with every impostor k of i."""
    order = np.argsort(I[:, 0], kind="stable")
    anchors, partners = I[order, 0], I[order, 1]
    first = np.searchsorted(anchors, S[:, 0], side="left")
    count = np.searchsorted(anchors, S[:, 0], side="right") - first
    pair = np.repeat(np.arange(len(S)), count)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
    return np.column_stack([S[pair], partners[first[pair] + within]]).astype(np.int64)


# ── the objective ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Pairs:
    """Every (i, j, level) whose distance J needs, once each; S and R are positions in this list.

    `own` (2, n) has the positions of (i, i, level) and (j, j, level) when value="divergence" needs them.
    """

    left: Index
    right: Index
    level: Index
    targets: Index
    near: Index
    far: Index
    own: Index | None = None

    def __len__(self) -> int:
        return len(self.left)


def pairs_of(S: Index, R: Index, level: Index, *, own: bool = False) -> Pairs:
    """Gather the distinct (i, j, ℓ(i)) of S and R; i and j are put in order, since W is symmetric."""
    n = len(level)
    i = np.concatenate([S[:, 0], R[:, 0], R[:, 0]])
    j = np.concatenate([S[:, 1], R[:, 1], R[:, 2]])
    key = (level[i] * n + np.minimum(i, j)) * n + np.maximum(i, j)
    distinct, where = np.unique(key, return_inverse=True)
    where = where.astype(np.int64)
    t, lo, hi = distinct // (n * n), distinct // n % n, distinct % n
    cut = np.cumsum([len(S), len(R)])
    parts = (where[: cut[0]], where[cut[0] : cut[1]], where[cut[1] :])
    if not own:
        return Pairs(lo, hi, t, *parts)
    self_terms, at = np.unique(np.concatenate([t * n + lo, t * n + hi]), return_inverse=True)
    at = at.astype(np.int64) + len(distinct)
    a, b = np.concatenate([lo, self_terms % n]), np.concatenate([hi, self_terms % n])
    return Pairs(a, b, np.concatenate([t, self_terms // n]), *parts, at.reshape(2, -1))


@dataclass(frozen=True, eq=False)
class Bundle:
    """The pairs of one level, over only the sets that they touch."""

    level: int
    sets: Pack
    left: Index
    right: Index
    at: Index
    """positions in Pairs"""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """J at some metrics: `objective` with the hinge, `smooth` with its Huber form, its gradient, active triplets."""

    objective: float
    smooth: float
    gradient: Array
    active: int


class Objective:
    """J(M0, M1 … MT) with every plan F re-solved at each call, from a warm start [MLML Eq. 9, 12–14].

    J = hold ‖M0 − I‖² + levels Σ_t ‖Mt‖² + pull Σ_S W_ℓ(i)(i, j) + push Σ_R φ(1 + W_ℓ(i)(i, j) − W_ℓ(i)(i, k)).
    The sums of level t run over the signatures of level t only (erratum 1: the literal Eq. 13 makes all Mt equal).
    `how` (tol, n_jobs) is that of `transport.solve_pairs`.
    """

    def __init__(
        self,
        sets: Pack,
        pairs: Pairs,
        levels: int,
        coefficients: Coefficients,
        gamma: float,
        *,
        value: transport.Value = "kl",
        width: float = 0.0,
        **how: Any,
    ) -> None:
        if value == "sharp":
            raise ConfigError("value: 'sharp' cannot be trained, its gradient is not the plan's; use 'kl'")
        self.pairs, self.levels, self.coefficients = pairs, levels, coefficients
        self.gamma, self.width, self.dim = gamma, width, sets.dim
        self.how = {"value": "kl" if value == "divergence" else value, "plans": True, **how}
        self.watch: Callable[[Record], None] | None = None
        self.bundles = [_bundle(sets, pairs, int(t)) for t in np.unique(pairs.level)]
        self.solved: list[Solutions | None] = [None] * len(self.bundles)

    def __call__(self, blocks: Array, *, slope: bool = True) -> Evaluation:
        """J and its gradient in every block; without `slope` the gradient is left out, which halves the work."""
        roots = [numeric.factor(metric(blocks, b.level)) for b in self.bundles]
        return self.finish(blocks, self.solve(roots), slope)

    def at_factors(self, factors: Array) -> Evaluation:
        """J at M = L Lᵀ for factors (1 + T, d, d), with the gradient in L: ∂J/∂L = 2 (∂J/∂M) L."""
        roots = [np.hstack([factors[0], factors[1 + b.level]]) if self.levels else factors[0] for b in self.bundles]
        at = self.finish(factors @ factors.transpose(0, 2, 1), self.solve(roots))
        return Evaluation(at.objective, at.smooth, 2 * at.gradient @ factors, at.active)

    def solve(self, roots: list[Array]) -> Array:
        """W of every pair, with the metric of bundle b given as a root L of L Lᵀ; the plans stay for the gradient."""
        W = np.empty(len(self.pairs))
        for k, (b, L) in enumerate(zip(self.bundles, roots, strict=True)):
            Z = b.sets.project(L)
            solved = transport.solve_pairs(Z, Z, b.left, b.right, self.gamma, start=self.solved[k], **self.how)
            self.solved[k] = solved
            W[b.at] = solved.value
        return W

    def finish(self, blocks: Array, raw: Array, slope: bool = True) -> Evaluation:
        p, c = self.pairs, self.coefficients
        W = raw if p.own is None else _divergence(raw, p.own)
        z = MARGIN + W[p.near] - W[p.far]
        (hinge, _), (smooth, rise) = ramp(z), ramp(z, self.width)
        ridge, gradient = self._ridge(blocks)
        fixed = ridge + c.pull * float(W[p.targets].sum())
        if slope:
            gradient += self.pull_back(_pair_weights(p, c, rise, len(W)))
        return Evaluation(
            fixed + c.push * float(hinge.sum()), fixed + c.push * float(smooth.sum()), gradient, int((z > 0).sum())
        )

    def weights(self, raw: Array, of_targets: NDArray[np.bool_], of_triplets: NDArray[np.bool_]) -> Array:
        """∂J/∂W of every pair by some of the targets and triplets alone."""
        p = self.pairs
        W = raw if p.own is None else _divergence(raw, p.own)
        part = replace(p, targets=p.targets[of_targets], near=p.near[of_triplets], far=p.far[of_triplets])
        rise = ramp(MARGIN + W[part.near] - W[part.far], self.width)[1]
        return _pair_weights(part, self.coefficients, rise, len(W))

    def _ridge(self, blocks: Array) -> tuple[float, Array]:
        """hold ‖M0 − I‖² + levels Σ ‖Mt‖² and its gradient."""
        c, away = self.coefficients, blocks.copy()
        away[0] -= np.eye(self.dim)
        scale = np.full((len(blocks), 1, 1), c.levels)
        scale[0] = c.hold
        return float((scale * away**2).sum()), 2 * scale * away

    def pull_back(self, weight: Array) -> Array:
        """Σ_p weight_p G_p for M0 over all levels and for Mt over level t alone [MLML Eq. 15, without its outer sum].

        Erratum 2: the printed ∇Mt sums over the index it is taken at; the outer sum belongs to ∇M0.
        """
        gradient = np.zeros((1 + self.levels, self.dim, self.dim))
        for b, solved in zip(self.bundles, self.solved, strict=True):
            if solved is None:
                raise InputError("no plan to differentiate: evaluate the objective once before")
            G = transport.scatter(b.sets, b.sets, b.left, b.right, solved, weight[b.at])
            gradient[0] += G
            if self.levels:
                gradient[1 + b.level] += G
        return gradient


def metric(blocks: Array, level: int) -> Array:
    """M0 + Mt, the metric of a level [MLML Eq. 10]; M0 alone in the global model."""
    return np.asarray(blocks[0] if len(blocks) == 1 else blocks[0] + blocks[1 + level])


def _bundle(sets: Pack, pairs: Pairs, level: int) -> Bundle:
    at = np.flatnonzero(pairs.level == level)
    used, local = np.unique(np.concatenate([pairs.left[at], pairs.right[at]]), return_inverse=True)
    local = local.astype(np.int64)
    return Bundle(level, sets.take(used), local[: len(at)], local[len(at) :], at)


def _divergence(raw: Array, own: Index) -> Array:
    """kl(P, Q) − ½ kl(P, P) − ½ kl(Q, Q) for the real pairs, which come first in the list."""
    return np.asarray(raw[: own.shape[1]] - raw[own].sum(axis=0) / 2)


def _pair_weights(p: Pairs, c: Coefficients, slope: Array, count: int) -> Array:
    """∂J/∂W of every pair: pull for targets, ± push · φ′ for triplets, −½ of it for each self term."""
    weight = c.pull * np.bincount(p.targets, minlength=count).astype(np.float64)
    weight += c.push * (np.bincount(p.near, slope, minlength=count) - np.bincount(p.far, slope, minlength=count))
    if p.own is None:
        return weight
    whole = np.concatenate([weight, np.zeros(len(p) - count)])
    for side in p.own:
        np.subtract.at(whole, side, weight / 2)
    return whole


def project(blocks: Array) -> Array:
    """Each block to its nearest positive semi-definite matrix [MLML Eq. 16]."""
    return np.stack([numeric.project_psd(M) for M in blocks])


def start(dim: int, levels: int, init: str = "identity") -> Array:
    """M0 = I and Mt = 0.01 I; init="paper" is Mt = I as printed, which means 2 I to begin with (erratum 4)."""
    scale = 1.0 if init == "paper" else SMALL
    return np.stack([np.eye(dim)] + [scale * np.eye(dim)] * levels)


# ── solvers: each yields the blocks after an iteration, with a record of it ────────────────────────────────────────

PLATEAU = 1e-5
"""A solver stops when the smooth objective has fallen by less than this fraction of itself."""


def lbfgs(J: Objective, blocks: Array, max_iter: int) -> Steps:
    """L-BFGS on factors, M = L Lᵀ in each block, from the symmetric roots of the blocks given."""
    if max_iter == 0:
        return
    began = time.perf_counter()
    shape, seen, path = blocks.shape, {}, []

    def value(x: Array) -> tuple[float, Array]:
        at = J.at_factors(x.reshape(shape))
        seen[x.tobytes()] = at
        return at.smooth, at.gradient.ravel()

    def keep(x: Array) -> None:
        at = seen.get(x.tobytes()) or J.at_factors(x.reshape(shape))
        seen.clear()
        L = x.reshape(shape)
        path.append((L @ L.transpose(0, 2, 1), record_step(J, at, began)))

    first = np.stack([numeric.sqrt_psd(M) for M in blocks])
    minimize(
        value,
        first.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=keep,
        options={"maxiter": max_iter, "ftol": PLATEAU / 10},
    )
    yield from path


def fista(J: Objective, blocks: Array, max_iter: int) -> Steps:
    """Accelerated projected gradient with backtracking; momentum restarts whenever the objective would rise."""
    began = time.perf_counter()
    x = y = blocks
    at_x = at_y = J(x)
    step, momentum = first_step(x, at_x.gradient), 1.0
    for _ in range(max_iter):
        moved, at_moved, step = _backtrack(J, y, at_y, step)
        if at_moved.smooth > at_x.smooth and momentum > 1:
            y, at_y, momentum = x, J(x), 1.0
            continue
        if at_moved.smooth >= at_x.smooth:
            return
        fallen = at_x.smooth - at_moved.smooth
        after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        y = project(moved + (momentum - 1) / after * (moved - x))
        x, at_x, momentum = moved, at_moved, after
        yield x, record_step(J, at_moved, began, step)
        if fallen < PLATEAU * abs(at_moved.smooth):
            return
        at_y = J(y)
        step *= 1.5


class Frozen:
    """J with the plans held that were solved at some metrics: convex in the blocks, whatever the text says (erratum 3).

    W = ⟨C(M), F⟩ plus the entropy of F, which does not depend on M [MLML Eq. 14].
    """

    def __init__(self, J: Objective, blocks: Array) -> None:
        self.J, roots = J, [numeric.factor(metric(blocks, b.level)) for b in J.bundles]
        W = J.solve(roots)
        self.at_start = J.finish(blocks, W)
        self.entropy = W - self._costs(roots)

    def values(self, blocks: Array) -> Array:
        """W of every pair at other metrics."""
        return self.entropy + self._costs([numeric.factor(metric(blocks, b.level)) for b in self.J.bundles])

    def __call__(self, blocks: Array) -> Evaluation:
        """J and its gradient at other metrics."""
        return self.J.finish(blocks, self.values(blocks))

    def _costs(self, roots: list[Array]) -> Array:
        out = np.empty(len(self.J.pairs))
        for b, solved, L in zip(self.J.bundles, self.J.solved, roots, strict=True):
            if solved is not None:
                Z = b.sets.project(L)
                out[b.at] = transport.plan_costs(Z, Z, b.left, b.right, solved)
        return out


def alternation(J: Objective, blocks: Array, max_iter: int, inner: int = 10) -> Steps:
    """As printed [MLML Algorithm 1]: solve every F, then projected subgradient steps on M with F frozen; and again.

    A frozen F bounds an impostor's distance from above only, so the true objective need not fall (erratum 3).
    λ and α of the printed algorithm occur in no equation (erratum 6); the step is ‖M‖ / (10 ‖∇‖ √k).
    """
    began, step, J.width = time.perf_counter(), 0.0, 0.0  # the printed hinge has a corner
    for outer in range(max_iter):
        frozen = Frozen(J, blocks)
        if outer:
            yield blocks, record_step(J, frozen.at_start, began, step)
        for k in range(inner):
            gradient = frozen(blocks).gradient
            step = float(first_step(blocks, gradient) / np.sqrt(1 + k + outer * inner))
            blocks = project(blocks - step * gradient)
    if max_iter:
        yield blocks, record_step(J, J(blocks), began, step)


def first_step(x: Array, gradient: Array) -> float:
    """A step that moves the blocks by a tenth of their norm."""
    return 0.1 * float(np.linalg.norm(x)) / max(float(np.linalg.norm(gradient)), 1e-300)


def _backtrack(J: Objective, y: Array, at_y: Evaluation, step: float) -> tuple[Array, Evaluation, float]:
    """Halve the step until J lies below its quadratic model at y."""
    for _ in range(40):
        moved = project(y - step * at_y.gradient)
        away = moved - y
        at_moved = J(moved, slope=False)
        model = at_y.smooth + float((at_y.gradient * away).sum()) + float((away**2).sum()) / (2 * step)
        if at_moved.smooth <= model + 1e-9 * abs(at_y.smooth):
            break
        step /= 2
    return moved, at_moved, step


def record_step(J: Objective, at: Evaluation, began: float, step: float = 0.0) -> Record:
    """What an iteration came to; whoever watches J is told at once."""
    record = {
        "objective": at.objective,
        "smooth": at.smooth,
        "active": at.active,
        "step": float(step),
        "seconds": time.perf_counter() - began,
    }
    if J.watch is not None:
        J.watch(record)
    return record


# ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────


def unwatched(record: Record) -> None:
    """Tell nobody."""


def without_memo(name: str, make: Callable[[], Kept]) -> Kept:
    """Make it anew each time."""
    return make()


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from: sets in coordinates whose identity is the start, classes, levels (0: the global model)."""

    options: LMNNOptions
    sets: Pack
    y: Index
    level: Index
    levels: int
    gamma: float


def learn(
    task: Task, rho: Rho, watch: Watch = unwatched, remember: Remember = without_memo
) -> tuple[Array, list[Record]]:
    """Rounds of: find the impostors under the metric so far, then minimise J with the chosen solver.

    Gives the blocks (1 + T, d, d) in the coordinates of the task, and the history.
    """
    rho0, rhot = rho
    if np.isinf(rho0):  # nothing is learned
        return np.concatenate([start(task.sets.dim, 0), np.zeros((task.levels, task.sets.dim, task.sets.dim))]), []
    if task.levels and np.isinf(rhot):  # no level gets a metric of its own
        shared, steps = learn(replace(task, levels=0), (rho0, rho0), watch, remember)
        return np.concatenate([shared, np.zeros((task.levels, *shared.shape[1:]))]), steps
    blocks = start(task.sets.dim, task.levels, task.options.init)
    S = target_neighbors(task)
    history: list[Record] = []
    before = np.empty((0, 3), dtype=np.int64)
    for turn in range(task.options.rounds):

        def one(turn: int = turn, at: Array = blocks, before: Index = before, count: int = len(history)) -> Kept:
            return _round(task, rho, at, S, before, turn, count, watch)

        arrays, said = remember(f"round-{turn}", one)
        history += said["history"]
        if said["settled"]:
            break
        blocks, before = np.asarray(arrays["blocks"]), np.asarray(arrays["triplets"])
    return blocks, history


def _round(task: Task, rho: Rho, blocks: Array, S: Index, before: Index, turn: int, count: int, watch: Watch) -> Kept:
    """One round; settled, with nothing learned, if its triplets are those of the round before."""
    k = task.options
    J, R = problem(task, blocks, rho, S, width=HUBER)
    if turn and np.array_equal(R, before):
        return {}, {"history": [], "settled": True}
    history: list[Record] = []

    def heard(record: Record) -> None:
        history.append({"round": turn, "iteration": count + len(history), "triplets": len(R), **record})
        watch({"stage": "learning", **history[-1]})

    J.watch = heard
    for moved, _ in k.minimise(J, blocks):
        blocks = moved
    if k.verbose and history:
        last = history[-1]
        print(f"round {turn}: J = {last['objective']:.5g}, {last['active']} of {len(R)} triplets active")
    return {"blocks": blocks, "triplets": R}, {"history": history, "settled": False}


def level_evidence(task: Task, blocks: Array, S: Index, repeats: int = 4) -> float:
    """How much of what sets the slopes of levels apart is no accident of their sets: 0 (none) to 1; below 0 by chance.

    The slope of J's data part at the global metric, level by level, is measured on one half of each level's sets and on
    the other; what both halves agree on, by how far a level differs from the mean of all, is signal. That share of
    halves is put to whole levels (Spearman and Brown). The mean of some halvings.
    """
    whole = np.concatenate([blocks[:1], np.zeros((task.levels, *blocks.shape[1:]))])
    J, R = problem(task, whole, (0.0, 0.0), S, width=HUBER)
    W = J.solve([numeric.factor(blocks[0])] * len(J.bundles))
    rng, found = np.random.default_rng(task.options.seed), []
    for _ in range(repeats):
        order = rng.permutation(len(task.y))
        rank = np.empty(len(order), dtype=np.int64)
        rank[order[np.argsort(task.level[order], kind="stable")]] = np.arange(len(order))
        apart = []
        for half in (0, 1):
            mine = rank % 2 == half
            weight = J.weights(W, mine[S[:, 0]], mine[R[:, 0]])
            counts = np.bincount(task.level[mine], minlength=task.levels).astype(np.float64)
            slopes = J.pull_back(weight)[1:] / np.maximum(counts, 1)[:, None, None]
            apart.append(slopes - np.tensordot(counts / counts.sum(), slopes, 1))
        n = np.bincount(task.level, minlength=task.levels)[:, None, None]
        agreed = float((n * apart[0] * apart[1]).sum())
        size = float((n * (apart[0] ** 2 + apart[1] ** 2)).sum()) / 2
        share = agreed / max(size, 1e-300)
        found.append(2 * share / (1 + share) if share > 0 else share)
    return float(np.mean(found))


def target_neighbors(task: Task) -> Index:
    """S (s, 2): the k_targets nearest of the same class at the start."""
    return targets(task.y, task.options.k_targets, distance_in(task, task.sets))


def problem(task: Task, blocks: Array, rho: Rho, S: Index | None = None, width: float = 0.0) -> tuple[Objective, Index]:
    """J with the targets S (default: those at the start) and the triplets R of the blocks given; R itself."""
    k, level = task.options, task.level if len(blocks) > 1 else np.zeros_like(task.level)
    S = target_neighbors(task) if S is None else S
    R = triplets(S, _impostors(task, blocks, level))
    c = Coefficients.of(*rho, k.mu, len(S), len(R), task.sets.dim, k.normalize)
    pairs = pairs_of(S, R, level, own=k.value == "divergence")
    how: dict[str, Any] = {"value": k.value, "tol": k.tol, "n_jobs": k.n_jobs}
    return Objective(task.sets, pairs, len(blocks) - 1, c, task.gamma, width=width, **how), R


def _impostors(task: Task, blocks: Array, level: Index) -> Index:
    """The nearest sets of other classes, each set's under the metric of its own level."""
    centres, found = means(task.sets), []
    for t in np.unique(level):
        root = numeric.factor(metric(blocks, int(t)))
        distance = distance_in(task, task.sets.project(root))
        rows = np.flatnonzero(level == t)
        found.append(impostors(task.y, task.options.k_impostors, centres @ root, distance, rows))
    return np.concatenate(found)


def distance_in(task: Task, Z: Pack) -> Callable[[Index, Index], Array]:
    """The distance of pairs of Z, as the options want it."""
    k = task.options
    return lambda i, j: distances(Z, Z, i, j, task.gamma, value=k.value, tol=k.tol, n_jobs=k.n_jobs)


def means(X: Pack) -> Array:
    """The weighted mean of each set."""
    return np.asarray(np.add.reduceat(X.points * X.weights[:, None], X.offsets[:-1], axis=0))
