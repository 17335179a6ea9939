"""The tab Sets: two albums, the plan that carries one onto the other, and a metric that was learned beside none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError
from likewise.studio.asked import Fields, identities, identity, number
from likewise.studio.jobs import Work
from likewise.studio.store import Picture, Recent, Store
from likewise.types import Array

MOST, SIDE = 100, 512
"""Pictures of an album, and the longest side at which they are described."""
KEPT = 12
DIMENSIONS = 32
"""What rows are brought to, by PCA, before a metric is learned."""
LOW, HIGH = 0.1, 100.0
"""The range of γ, in multiples of what "auto" takes."""
BATCH = 8

IDENTITY = "Euclid's: how far apart two pictures are in the 1280 numbers of the embedder. Nothing was learned."
LEARNED = (
    "Learned here (multi-level LMNN under the smoothed Wasserstein distance) from 24 sample albums of 8 scenes, in 32 "
    "principal coordinates: albums of one scene are drawn together. Scaled so that γ means the same in both."
)


@dataclass(frozen=True, eq=False)
class Metric:
    """(x − mean) basis takes rows (n, d) to coordinates in which `matrix` was learned."""

    mean: Array
    basis: Array
    matrix: Array

    def coordinates(self, rows: Array) -> Array:
        """Rows (n, d) as (n, DIMENSIONS)."""
        return np.asarray((rows - self.mean) @ self.basis)


@dataclass(frozen=True, eq=False)
class Albums:
    """The rows of two albums under each metric, and γ as "auto" chooses it."""

    rows: dict[str, tuple[Array, Array]]
    matrices: dict[str, Array | None]
    gamma: float


class Sets:
    """What the tab asks for."""

    def __init__(self, store: Store, cache: Path | None = None) -> None:
        self.store, self.cache = store, (cache or media.cache_folder()) / "studio"
        self._kept: Recent[Albums] = Recent(KEPT, "this pair of albums")
        self._metric: Metric | None = None

    def samples(self) -> dict[str, Any]:
        """Two albums that share three of their scenes."""
        from likewise import samples

        folder = self.store.folder / "albums"
        if not (folder / "friday").is_dir():
            samples.albums(folder)
        albums = [
            {"name": name, "pictures": [self.store.known(p).to_dict() for p in media.images(folder / name)]}
            for name in ("monday", "friday")
        ]
        return {"albums": albums}

    # ── describing ────────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Describe the pictures of two albums; the plan itself is asked for afterwards, at every move of γ."""
        ids = [identities(fields, name, MOST) for name in ("a", "b")]
        pictures = [[self.store.picture(i) for i in side] for side in ids]
        rows = self._described(work, [p for side in pictures for p in side], "describing the pictures")
        a, b = rows[: len(ids[0])], rows[len(ids[0]) :]
        plain = _plain(a, b)
        key = self._kept.put(plain)
        if self._metric is None:
            work.partial(self._answer(key, pictures, plain))
        both = _both(plain, self._learned(work))
        self._kept.put(both, key)
        return self._answer(key, pictures, both)

    def _answer(self, key: str, pictures: list[list[Picture]], albums: Albums) -> dict[str, Any]:
        words = {"identity": IDENTITY, "learned": LEARNED}
        a, b = ([p.to_dict() for p in side] for side in pictures)
        gamma = {"low": LOW * albums.gamma, "high": HIGH * albums.gamma, "auto": albums.gamma}
        metrics = [{"name": name, "words": words[name]} for name in albums.rows]
        return {"key": key, "a": a, "b": b, "gamma": gamma, "metrics": metrics}

    def _described(self, work: Work, pictures: list[Picture], words: str) -> Array:
        """One unit row a picture."""
        from likewise.images import default

        work.say(words, 0.0)
        model, rows = default(), []
        for start in range(0, len(pictures), BATCH):
            some = pictures[start : start + BATCH]
            rows.append(np.asarray(model.embed([self.store.array(p.id, SIDE) for p in some]), dtype=np.float64))
            work.say(words, min(1.0, (start + BATCH) / len(pictures)))
        return np.concatenate(rows)

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _learned(self, work: Work) -> Metric:
        """The learned metric: of this session, of the cache folder, or made now."""
        if self._metric is None:
            from likewise.images import default

            file = self.cache / f"sets-{default().digest[:16]}.npz"
            self._metric = _read(file)
            if self._metric is None:
                self._metric = self._learn(work)
                _write(file, self._metric)
        return self._metric

    def _learn(self, work: Work) -> Metric:
        from likewise import samples
        from likewise.sets import Signature, WassersteinLMNN

        folder = self.store.folder / "scenes"
        albums = samples.scenes(folder)
        pictures = [self.store.known(p) for album in albums for p in album]
        rows = self._described(work, pictures, "describing the sample albums to learn from, once")
        work.say("learning a metric, once")
        mean, basis = principal(rows, DIMENSIONS)
        parts = np.split((rows - mean) @ basis, np.cumsum([len(a) for a in albums])[:-1])
        names = [album[0].parent.parent.name for album in albums]
        model = WassersteinLMNN(multilevel=False, k_targets=2, rho0=0.1, rounds=2)
        model.fit([Signature(p) for p in parts], names, watch=lambda _: work.check())
        return Metric(mean, basis, model.M0_)

    # ── plans ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def plan(self, fields: Fields) -> dict[str, Any]:
        """The plan at a γ under a metric [MLML Eq. 4-7]."""
        from likewise.sets import compare

        albums = self._kept.get(identity(fields, "key"))
        name = fields.get("metric") or "identity"
        if name not in albums.rows:
            raise InputError(f"metric: expected one of {', '.join(albums.rows)}, got {name!r}"[:120])
        low, high = LOW * albums.gamma * 0.999, HIGH * albums.gamma * 1.001
        gamma = number(fields, "gamma", low, high, default=albums.gamma)
        found = compare(*albums.rows[name], gamma=gamma, metric=albums.matrices[name])
        return {
            "plan": found.plan.round(7).tolist(),
            "distance": found.distance,
            "gamma": found.gamma,
            "iterations": found.iterations,
            "converged": found.converged,
            "metric": name,
        }


def _plain(a: Array, b: Array) -> Albums:
    """Both albums as they are."""
    from likewise.sets import compare

    return Albums({"identity": (a, b)}, {"identity": None}, compare(a, b).gamma)


def _both(plain: Albums, metric: Metric) -> Albums:
    """The same under the learned metric, too, scaled so that "auto" takes the same γ under it."""
    from likewise.sets import compare

    p, q = (metric.coordinates(rows) for rows in plain.rows["identity"])
    other = compare(p, q, metric=metric.matrix).gamma
    matrix = metric.matrix * (plain.gamma / other if other > 0 else 1.0)
    return Albums({**plain.rows, "learned": (p, q)}, {**plain.matrices, "learned": matrix}, plain.gamma)


def principal(rows: Array, d: int) -> tuple[Array, Array]:
    """The mean of rows and their first d principal directions (dim, d)."""
    mean = rows.mean(0)
    directions = np.linalg.svd(rows - mean, full_matrices=False)[2][:d]
    return mean, directions.T


def _read(file: Path) -> Metric | None:
    """The metric that a file holds; None where there is none, or where it is damaged."""
    try:
        found = media.load_arrays(file)
        metric = Metric(*(found[name].astype(np.float64) for name in ("mean", "basis", "matrix")))
    except (FileError, KeyError):
        return None
    d, k = metric.basis.shape if metric.basis.ndim == 2 else (0, 0)
    fits = metric.mean.shape == (d,) and metric.matrix.shape == (k, k) and d > 0
    return metric if fits and all(np.isfinite(x).all() for x in vars(metric).values()) else None


def _write(file: Path, metric: Metric) -> None:
    """Keep the metric for the next session; a folder that cannot be written to is passed over."""
    try:
        with media.atomic(file) as sibling:
            np.savez(sibling, **vars(metric))
    except OSError:
        return
