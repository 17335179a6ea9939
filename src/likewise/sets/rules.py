"""Which metric decides at test time: gallery, energy, global, mean (erratum 7: the paper gives no rule)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise import numeric
from likewise.sets import multilevel as ml
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array

RULES = ("gallery", "energy", "global", "mean")


@dataclass(frozen=True, eq=False)
class Gallery:
    """Labelled sets and the metrics learned from them: blocks (1 + T, d, d), M0 first; all in one set of units.

    A level's code is its place among the T metrics; −1 stands for no level.
    """

    options: ml.LMNNOptions
    sets: Pack
    y: Index
    level: Index
    classes: int
    blocks: Array
    gamma: float
    targets: Index

    def metric(self, code: int, rule: str) -> Array:
        """M0 + Mt for a level's code; M0 + mean Mt for none or under rule="mean"; M0 under rule="global"."""
        if len(self.blocks) == 1 or rule == "global":
            return np.asarray(self.blocks[0])
        if rule == "mean" or code < 0:
            return np.asarray(self.blocks[0] + self.blocks[1:].mean(axis=0))
        return ml.metric(self.blocks, code)

    def distances(
        self, X: Pack, Y: Pack, left: Index, right: Index, codes: Index, rule: str, tol: float | None = None
    ) -> Array:
        """The distance of each pair (X[left], Y[right]) under the metric of its code."""
        if len(self.blocks) == 1 or rule in ("global", "mean"):
            codes = np.full(len(left), -1)
        k, out = self.options, np.empty(len(left))
        for code in np.unique(codes):
            at, root = np.flatnonzero(codes == code), numeric.factor(self.metric(int(code), rule))
            P, Q = X.project(root), Y.project(root)
            out[at] = ml.distances(P, Q, left[at], right[at], self.gamma, k.value, tol=tol or k.tol, n_jobs=k.n_jobs)
        return out

    def matrix(self, X: Pack, Y: Pack, codes: Index, rule: str, tol: float | None = None) -> Array:
        """Distances of all X to all Y, column j under the metric of codes[j]."""
        i, j = np.indices((len(X), len(Y))).reshape(2, -1)
        return self.distances(X, Y, i, j, codes[j], rule, tol).reshape(len(X), len(Y))

    def decide(self, X: Pack, own: Index, rule: str) -> Index:
        """The class of each set of X; `own` is the code of its level where that is known."""
        if rule == "energy":
            return np.asarray(np.argmin(self.energies(X, own), axis=1), dtype=np.int64)
        return vote(self.matrix(X, self.sets, self.level, rule), self.y, self.options.n_neighbors, self.classes)

    def energies(self, X: Pack, own: Index) -> Array:
        """E (n, classes): by how much the objective grows when set x joins the training sets with label c.

        E = (1−μ) Σ_j W_c(x, j) + μ/k Σ_jl φ(1 + W_c(x, j) − W_c(x, l))
            + μ/k Σ_{S, y_i ≠ c} φ(1 + W_i(i, j) − W_i(i, x)):
        its own targets j, its own k impostors l, and the targets of others that it would come between.
        W_c is under the level of x where it is known, else under the commonest level of class c.
        """
        many = len(self.blocks) > 1
        used = np.unique(np.concatenate([self.level, own[own >= 0]])) if many else [0]
        D = {int(t): self.matrix(X, self.sets, np.full(len(self.sets), t), "energy") for t in used}
        push = self.options.mu / self.options.k_impostors
        between = self._between(D) * push
        E = np.empty((len(X), self.classes))
        home = [int(np.bincount(self.level[self.y == c]).argmax()) if many else 0 for c in range(self.classes)]
        for x in range(len(X)):
            for c in range(self.classes):
                W = D[int(own[x]) if many and own[x] >= 0 else home[c]][x]
                E[x, c] = self._own_energy(W, self.y == c, push) + between[x].sum() - between[x, c]
        return E

    def _own_energy(self, W: Array, same: Any, push: float) -> float:
        k = self.options
        near, far = np.sort(W[same])[: k.k_targets], np.sort(W[~same])[: k.k_impostors]
        invaded = np.maximum(ml.MARGIN + near[:, None] - far[None, :], 0).sum()
        return float(((1 - k.mu) * near.sum() + push * invaded) * k.k_targets / len(near))

    def _between(self, D: dict[int, Array]) -> Array:
        """(n, classes): Σ φ(1 + W(i, j) − W(i, x)) over the targets (i, j) of each class."""
        i, j = self.targets.T
        reach = self.distances(self.sets, self.sets, i, j, self.level[i], "energy")
        t = self.level[i] if len(self.blocks) > 1 else np.zeros(len(i), dtype=np.int64)
        out = np.zeros((len(next(iter(D.values()))), self.classes))
        for s in range(len(i)):
            out[:, self.y[i[s]]] += np.maximum(ml.MARGIN + reach[s] - D[int(t[s])][:, i[s]], 0)
        return out


def vote(D: Array, y: Index, k: int, classes: int) -> Index:
    """The commonest class among the k nearest; of equals, the one whose nearest member is nearest."""
    k = min(k, D.shape[1])
    near = np.argsort(D, axis=1, kind="stable")[:, :k]
    ballots = np.zeros((len(D), classes))
    for r in range(k):
        ballots[np.arange(len(D)), y[near[:, r]]] += 1 + (k - r) * 1e-6 / k
    return np.asarray(ballots.argmax(axis=1), dtype=np.int64)
