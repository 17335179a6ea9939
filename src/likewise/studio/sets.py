"""The tab Albums: two albums, the transport plan between them, under the identity and under a learned metric."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from likewise import media, samples, sets
from likewise.errors import FileError, InputError
from likewise.images import default
from likewise.sets import scale
from likewise.store.checkpoint import load, save
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, ids, number, text, watch
from likewise.studio.uploads import ImageStore, Recent, SessionImage, written
from likewise.types import Array, Signature

LIMIT, SIDE = 100, 512
"""Images of an album, and the longest side at which they are embedded."""
KEPT = 12
DIMENSIONS = 32
"""Principal components in which the metric is learned."""
LOW, HIGH = 0.1, 100.0
"""The range of γ, in multiples of what "auto" takes."""

WORDS = {
    "identity": "Euclidean: how far apart two images are in the 1280 numbers of the embedder. Nothing was learned.",
    "learned": "Learned here (multi-level LMNN under the smoothed Wasserstein distance) from 24 sample albums of 8 "
    "scenes, in 32 principal components: albums of one scene are drawn together. Scaled so that γ means the same in "
    "both.",
}


@dataclass(frozen=True, eq=False)
class Albums:
    """The embeddings of two albums and the matrix under each metric, γ as "auto" chooses it, how unusual they are."""

    metrics: dict[str, tuple[Any, Any, Array | None]]
    gamma: float
    scale: scale.Scale


class Tab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.cache = store, cache
        self._kept: Recent[Albums] = Recent(KEPT, "this pair of albums")
        self._metric: sets.WassersteinLMNN | None = None

    def samples(self) -> dict[str, Any]:
        """Two albums that share three of their scenes."""
        folder = written(self.cache / "albums", samples.albums)
        albums = {name: media.images(folder / name) for name in ("monday", "friday")}
        linked = {name: [self.store.link(p).to_dict() for p in files] for name, files in albums.items()}
        return {"albums": [{"name": name, "pictures": pictures} for name, pictures in linked.items()]}

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Embed the images of two albums; the plan itself is asked for afterwards, at every move of γ."""
        albums = [[self.store.get(key) for key in ids(fields, name, LIMIT)] for name in ("a", "b")]
        embeddings = self._embed(work, [*albums[0], *albums[1]], "embedding the images")
        a, b = np.split(embeddings, [len(albums[0])])
        plain = Albums({"identity": (a, b, None)}, sets.compare(a, b).gamma, _scale(a, b))
        key = self._kept.put(plain)
        return self._answer(key, plain)

    def learn(self, work: Work, fields: Fields) -> dict[str, Any]:
        """The same albums under the learned metric too, which is learned where there is none yet."""
        key = text(fields, "key")
        plain = self._kept.get(key)
        metric = self._learned(work)
        a, b, _ = plain.metrics["identity"]
        p, q = metric.project([a, b])
        gamma = sets.compare(p, q, metric=metric.M0_).gamma
        # Scaled so that "auto" takes the same γ under both metrics: one slider serves both.
        matrix = metric.M0_ * (plain.gamma / gamma if gamma > 0 else 1.0)
        both = Albums({**plain.metrics, "learned": (p, q, matrix)}, plain.gamma, plain.scale)
        self._kept.put(both, key)
        return self._answer(key, both)

    def _answer(self, key: str, albums: Albums) -> dict[str, Any]:
        gamma = {"low": LOW * albums.gamma, "high": HIGH * albums.gamma, "auto": albums.gamma}
        metrics = [{"name": name, "words": WORDS[name]} for name in albums.metrics]
        return {"key": key, "gamma": gamma, "metrics": metrics, "scale": albums.scale.to_dict()}

    def _embed(self, work: Work, images: list[SessionImage], words: str) -> Array:
        """One unit row an image."""
        work.report(words, 0.0)
        pixels = [self.store.read(image.id, SIDE) for image in images]
        with watch(default(), work, words, len(images)):
            return np.asarray(default().embed(pixels), dtype=np.float64)

    def _learned(self, work: Work) -> sets.WassersteinLMNN:
        """The learned metric: of this session, of the cache folder, or learned now."""
        file = self.cache / f"sets-{default().digest[:16]}.safetensors"
        if self._metric is None:
            try:
                self._metric = load(file)
            except FileError:  # not there yet, or damaged
                self._metric = self._learn(work)
                with contextlib.suppress(OSError):
                    save(self._metric, file)
        return self._metric

    def _learn(self, work: Work) -> sets.WassersteinLMNN:
        albums = samples.scenes(self.store.folder / "scenes")
        images = [self.store.link(path) for album in albums for path in album]
        embeddings = self._embed(work, images, "embedding the sample albums to learn from, once")
        work.report("learning a metric, once")
        rows = np.split(embeddings, np.cumsum([len(album) for album in albums])[:-1])
        scenes = [album[0].parent.parent.name for album in albums]
        model = sets.WassersteinLMNN(multilevel=False, k_targets=2, rho0=0.1, rounds=2, n_components=DIMENSIONS)
        return model.fit(rows, scenes, watch=lambda _: work.check())

    def plan(self, fields: Fields) -> dict[str, Any]:
        """The plan at a γ under a metric [MLML Eq. 4-7]."""
        albums = self._kept.get(text(fields, "key"))
        name = fields.get("metric") or "identity"
        if not isinstance(name, str) or name not in albums.metrics:
            raise InputError(f"metric: expected one of {', '.join(albums.metrics)}")
        low, high = LOW * albums.gamma * 0.999, HIGH * albums.gamma * 1.001  # what the slider's text rounds
        a, b, matrix = albums.metrics[name]
        comparison = sets.compare(a, b, gamma=number(fields, "gamma", low, high, default=albums.gamma), metric=matrix)
        return {
            "plan": comparison.plan.round(7).tolist(),
            "distance": comparison.distance,
            "gamma": comparison.gamma,
            "iterations": comparison.iterations,
            "converged": comparison.converged,
            "metric": name,
        }


def _scale(a: Array, b: Array) -> scale.Scale:
    """How unusual the distance of `likewise compare` is, which has the centres of eight clusters of a larger album."""
    # few photos are their own centres: what clusters takes a second to load
    p, q = (Signature(rows) if len(rows) <= 8 else sets.signature(rows) for rows in (a, b))
    return scale.of_albums(sets.compare(p, q).distance, (p, q), (len(a), len(b)))
