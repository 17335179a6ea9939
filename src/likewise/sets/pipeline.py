"""From described pictures to a learned distance: the axes that training sets were put on, and the metric on them.

A metric is learned on the principal axes of its training sets; whoever compares new pictures under it needs the same
features and the same axes again. A Pipeline keeps the three together in one file. It knows its features by name only:
this level never imports an embedder, so whoever reads pictures (the command line) looks the name up.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise.errors import InputError, ShapeError
from likewise.sets.compare import Gamma, SetComparison, compare
from likewise.sets.model import WassersteinLMNN
from likewise.types import Array, Signature


@dataclass(frozen=True, eq=False)
class Axes:
    """Principal axes: x ↦ A (x − mean), A (r, d) with orthonormal rows."""

    mean: Array
    rows: Array

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.mean.shape != self.rows.shape[1:] or 0 in self.rows.shape:
            raise ShapeError(f"axes: expected (r, d) and a mean (d,), got {self.rows.shape} and {self.mean.shape}")

    @classmethod
    def of(cls, sets: Sequence[Signature], most: int) -> Axes:
        """At most `most` principal axes of all points of some sets, each point counted once; those of no spread go."""
        points = np.concatenate([s.points for s in sets])
        mean = points.mean(axis=0)
        _, spread, rows = np.linalg.svd(points - mean, full_matrices=False)
        rank = max(1, int((spread > 1e-10 * max(float(spread[0]), 1e-300)).sum()))
        return cls(mean, np.ascontiguousarray(rows[: min(most, rank)]))

    def __call__(self, s: Signature) -> Signature:
        """The set on these axes, with its weights, level and names."""
        if s.dim != len(self.mean):
            raise ShapeError(f"points: expected {len(self.mean)} coordinates, as in training, got {s.dim}")
        return Signature((s.points - self.mean) @ self.rows.T, s.weights, s.level, s.names)


@dataclass(frozen=True, eq=False, repr=False)
class Pipeline:
    """A learned metric with all that it needs to take pictures again; `lw.save` and `lw.load` keep it in one file.

    `features` names how pictures were described (None: the sets came as numbers), `k` and `every` how signatures were
    made of them, `axes` what their points were put on (None: taken as they are), `model` the metric learned there.
    """

    model: WassersteinLMNN
    axes: Axes | None = None
    features: str | None = None
    k: int | None = 8
    every: int = 1
    seed: int = 0

    @property
    def dim(self) -> int:
        """How many coordinates the described points must have."""
        return int(self.model.n_features_in_) if self.axes is None else len(self.axes.mean)

    def __repr__(self) -> str:
        how = self.features or "numbers"
        return (
            f"Pipeline({how}, {self.dim} → {self.model.n_features_in_} dimensions, {len(self.model.classes_)} classes)"
        )

    def project(self, sets: Sequence[Signature]) -> list[Signature]:
        """Sets of described points on the axes of the model."""
        for i, s in enumerate(sets):
            if s.dim != self.dim:
                raise ShapeError(f"set {i} has {s.dim} coordinates where the model was trained on {self.dim}")
        return list(sets) if self.axes is None else [self.axes(s) for s in sets]

    def metric(self, level: Hashable = None) -> Array:
        """The learned matrix on the axes: of a level, or of none (M0 + mean Mt; M0 under rule "global")."""
        return self.model.metric(level)

    def predict(self, sets: Sequence[Signature]) -> Any:
        """The label of each set."""
        return self.model.predict(self.project(sets))

    def compare(
        self, p: Signature, q: Signature, *, level: Hashable = None, gamma: Gamma = "auto", value: Any = None
    ) -> SetComparison:
        """Compare two sets under the learned metric; γ "auto" and no value are those of the training."""
        a, b = self.project([p, q])
        g = self.model.gamma_ if gamma == "auto" else gamma
        return compare(a, b, gamma=g, metric=self.metric(level), value=value or self.model.value, tol=self.model.tol)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the JSON header from which `from_state` makes an equal pipeline."""
        arrays, header = self.model.state()
        named = {f"model.{name}": array for name, array in arrays.items()}
        if self.axes is not None:
            named |= {"axes.mean": self.axes.mean, "axes.rows": self.axes.rows}
        about = {"features": self.features, "k": self.k, "every": self.every, "seed": self.seed}
        return named, {"model": header, **about}

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Pipeline:
        """The pipeline that `state` described; what does not fit together is an InputError."""
        inner = {name.removeprefix("model."): a for name, a in arrays.items() if name.startswith("model.")}
        model = WassersteinLMNN.from_state(inner, header["model"])
        axes = None
        if "axes.rows" in arrays:
            axes = Axes(np.asarray(arrays["axes.mean"], np.float64), np.asarray(arrays["axes.rows"], np.float64))
            if len(axes.rows) != model.n_features_in_:
                raise ShapeError(f"axes: {len(axes.rows)} of them for a model of {model.n_features_in_} dimensions")
        features, k = header["features"], header["k"]
        if not (features is None or isinstance(features, str)):
            raise InputError(f"features: expected a name, got {features!r}")
        return cls(model, axes, features, None if k is None else int(k), int(header["every"]), int(header["seed"]))


def as_pipeline(model: Any, *, where: str = "model") -> Pipeline:
    """A Pipeline as it is; a bare WassersteinLMNN as one that takes numbers."""
    if isinstance(model, Pipeline):
        return model
    if isinstance(model, WassersteinLMNN):
        return Pipeline(model, k=None)
    raise InputError(f"{where}: expected a learned metric of sets, got {type(model).__name__}")
