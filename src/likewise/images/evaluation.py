"""evaluate(model, dataset): what a model finds among images whose classes are known, and what it takes for what."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from likewise import numeric, plot
from likewise.errors import InputError
from likewise.images import metrics
from likewise.images.data import Dataset, as_dataset
from likewise.images.embedder import Embedder, Embeds
from likewise.images.embedding import embed_images, model_name
from likewise.images.metrics import Floats, Index, Rows

SHOWN = 8
"""Queries that are drawn, and how many neighbours of each."""


def evaluate(
    model: Embeds,
    dataset: Dataset | str | os.PathLike[str],
    *,
    ks: Iterable[int] = metrics.KS,
    nmi: bool = True,
    batch_size: int = 32,
    progress: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """Measure a model on labelled images: look each one up among all others.

    Parameters
    ----------
    model : object with .embed
        Gives one row an image.
    dataset : Dataset or path
        Labelled images, or the path of class folders.
    ks : iterable of int, default (1, 2, 4, 8)
        The k of R@k.
    nmi : bool, default True
        Cluster, too: slow with thousands of classes.
    batch_size : int, default 32
        Images that are embedded at a time.
    progress : bool, default False
        Show a bar.
    seed : int, default 0
        Of the clusters.

    Returns
    -------
    dict
        "R@1" …, "map_at_r", "nmi", "f1", "spectral_decay", "n", "classes", "dim", "model", "dataset". Images that
        cannot be read are left out and named under "skipped". One that is alone in its class counts as a miss; "lone"
        says how many there are.

    Raises
    ------
    InputError
        If fewer than two images can be read.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> images = [np.full((8, 8, 3), v, np.uint8) for v in (10, 20, 200, 210)]
    >>> class Brightness:
    ...     def embed(self, images):
    ...         return [[image.mean(), 100.0] for image in images]
    >>> lw.images.evaluate(Brightness(), lw.images.Dataset(images, ["dark", "dark", "light", "light"]))["R@1"]
    1.0
    """
    return examine(model, dataset, ks=ks, nmi=nmi, batch_size=batch_size, progress=progress, seed=seed).figures


def examine(
    model: Embeds,
    dataset: Dataset | str | os.PathLike[str],
    *,
    ks: Iterable[int] = metrics.KS,
    nmi: bool = True,
    seed: int = 0,
    **options: Any,
) -> Evaluation:
    """The same as `evaluate`, with what stands behind the figures: rows, neighbours, classes, confusions, plots."""
    wanted, whole = metrics.check_ks(ks), as_dataset(dataset)
    found, read, skipped = embed_images(model, whole.items, **(options if isinstance(model, Embedder) else {}))
    if len(read) < 2:
        raise InputError(f"dataset: {len(read)} of {len(whole)} images could be read; expected at least two")
    rows, kept = metrics.unit_rows(found, "model"), whole.subset(read) if skipped else whole
    hits, clustered = metrics.hits_at_k(rows, kept.labels, {1, *wanted}), {}
    if nmi:
        found = metrics.clusters(rows, len(np.unique(kept.labels)), seed=seed)
        clustered = {f.__name__: f(rows, kept.labels, clustering=found) for f in (metrics.nmi, metrics.f1)}
    figures = {
        "model": model_name(model),
        "dataset": kept.name,
        "n": len(kept),
        "classes": len(np.unique(kept.labels)),
        "dim": int(rows.shape[1]),
        **{f"R@{k}": metrics.mean_score(hits[k]) for k in wanted},
        "map_at_r": metrics.map_at_r(rows, kept.labels),
        **clustered,
        "spectral_decay": metrics.spectral_decay(rows),
        "lone": int(np.isnan(hits[1]).sum()),
        "skipped": [{"name": s.name, "reason": s.reason} for s in skipped],
    }
    return Evaluation(figures, kept, rows, hits[1], seed)


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """What a model made of labelled images: `figures` as `evaluate` gives them, and the reasons.

    `dataset` holds the images that could be read, `rows` (n, dim) their embeddings, `hits` (n,) the R@1 of each (NaN
    where no other image is of its class).
    """

    figures: dict[str, Any]
    dataset: Dataset
    rows: Rows
    hits: Floats
    seed: int = 0

    def __repr__(self) -> str:
        first = next(name for name in self.figures if name.startswith("R@"))
        return f"Evaluation({self.figures['dataset']}, {first} {self.figures[first]:.3f}, {self.figures['model']})"

    @cached_property
    def nearest(self) -> Index:
        """The places (n, ≤ 8) of the nearest other images of each, nearest first."""
        return numeric.nearest(self.rows, k=min(SHOWN, len(self.rows) - 1))[1]

    def per_class(self) -> list[dict[str, Any]]:
        """R@1 of each class that has two images or more, the worst first."""
        counts = self.dataset.counts
        sums = np.bincount(self.dataset.labels, np.nan_to_num(self.hits), len(counts))
        rows = [
            {"class": name, "n": int(n), "R@1": float(hits / n)}
            for name, n, hits in zip(self.dataset.classes, counts, sums, strict=True)
            if n > 1
        ]
        return sorted(rows, key=lambda row: (row["R@1"], -row["n"], row["class"]))

    def confusions(self, most: int = 20) -> list[dict[str, Any]]:
        """Which class is most often taken for which: the nearest image of an image is of another class.

        `share` is the part of the class's images with which this happens.
        """
        labels, classes, counts = self.dataset.labels, self.dataset.classes, self.dataset.counts
        pairs = np.stack([labels, labels[self.nearest[:, 0]]], axis=1)
        wrong, times = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0, return_counts=True)
        rows = [
            {"class": classes[a], "taken for": classes[b], "n": int(n), "share": float(n / counts[a])}
            for (a, b), n in zip(wrong, times, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row["n"], -row["share"], row["class"], row["taken for"]))[:most]

    def queries(self, most: int | None = None) -> Index:
        """Images drawn at random by the seed, each of another class as far as there are so many."""
        order = np.random.default_rng(self.seed).permutation(len(self.rows))
        order = order[~np.isnan(self.hits[order])]
        labels = self.dataset.labels[order]
        by_class = np.argsort(labels, kind="stable")
        turns = np.empty_like(by_class)  # the how-many-th of its class
        turns[by_class] = np.arange(len(labels)) - np.searchsorted(labels[by_class], labels[by_class])
        return np.asarray(order[np.argsort(turns, kind="stable")][: most or SHOWN], dtype=np.int64)

    def plot_rankings(self) -> Figure:
        """Some images, drawn at random, each with its nearest: the right ones framed green, the wrong ones red."""
        chosen, labels = self.queries(), self.dataset.labels
        near = self.nearest[chosen]
        return plot.ranking(
            [self.dataset.items[i] for i in chosen],
            [[self.dataset.items[j] for j in row] for row in near],
            right=(labels[near] == labels[chosen][:, None]).tolist(),
            names=[self.dataset.classes[c] for c in labels[chosen]],
            captions=[[self.dataset.classes[labels[j]] for j in row] for row in near],
            title=f"{self.figures['dataset']}, {self.figures['model']}: images drawn at random and their nearest",
        )

    def plot_spectrum(self) -> Figure:
        """The spectrum in log10, beside that of an embedding that uses all directions alike [DiVA Fig. 5]."""
        values = metrics.spectrum(self.rows)
        values = values[values > 0]
        return plot.spectrum(
            {str(self.figures["model"]): np.log10(values), "uniform": np.full(len(values), -np.log10(len(values)))},
            title=f"{self.figures['dataset']}: spectral decay {self.figures['spectral_decay']:.3f}",
            ylabel="log10 of a singular value's share",
        )
