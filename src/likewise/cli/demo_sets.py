"""The demo's panels on sets: two albums and the plan between them, all albums against all, a metric that is learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import samples
from likewise.cli.demo import Panel, step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.types import Signature

    Floats = NDArray[np.float64]

DIGITS, PAGE, TRAIN_PAGES, TEST_PAGES, RESAMPLES = 10, 5, 60, 200, 3
"""The learned metric: kinds of digits, digits on a page, pages to learn from and to test on, how often it is drawn."""


def embedded(files: Sequence[Path], name: str | None = None) -> Signature:
    """An album as a set: a point a picture, by the embedder that needs no training."""
    from likewise.images import default
    from likewise.types import Signature

    return Signature(default().embed(list(files)), names=[str(f) for f in files], level=name)


def albums_panel(folder: Path, seed: int) -> Panel:
    """Two albums that share three of their scenes, and the plan between them."""
    from likewise.plot.report import Section
    from likewise.sets import compare

    with step("two albums, compared") as said:
        p, q = (embedded(files) for files in samples.albums(folder / "albums", seed))
        found = compare(p, q)
        found.plot(folder / "plan.png", labels=("monday", "friday"), title=f"distance {found.distance:.3f}")
        found.to_json(folder / "plan.json")
        kept, possible = same_scene(found.plan, p.names or (), q.names or ())
        said.append(f"distance {found.distance:.3f}; {kept:.1%} of the mass joins pictures of one scene")
    text = (
        "Each album is a bag of photographs: other crops, other light, another number of each. Optimal transport moves "
        "one album onto the other at the least cost, and the plan says which picture answers to which.",
        f"The albums share cat, coffee and flower, so at most {possible:.0%} of the mass can stay within a scene. "
        f"The plan kept {kept:.1%} there without having seen a label. What is left, the rocket and a cat too many, "
        "finds no partner but the temple, which has none either.",
    )
    section = Section(
        "Two albums, and the plan between them",
        text,
        folder / "plan.png",
        "Two columns of photographs joined by ribbons: cats with cats, coffee cups with coffee cups, flowers with "
        "flowers; the rocket and a spare cat are joined with the temple.",
        f"The width of a line is the mass that goes from one picture to another. Smoothed Wasserstein distance "
        f"{found.distance:.3f} between {len(p)} and {len(q)} photographs, {p.dim} numbers each, "
        f"γ = {found.gamma:.3g}, solved in {found.iterations} iterations.",
        wide="46rem",
    )
    figures = {"distance": found.distance, "same_scene_mass": kept, "same_scene_possible": possible}
    fact = (f"of the mass joins pictures of one scene, where {possible:.0%} is the most there can be", f"{kept:.1%}")
    return Panel("albums", "plan.png", figures, fact, section)


def same_scene(F: Floats, a: Sequence[str], b: Sequence[str]) -> tuple[float, float]:
    """The mass between pictures of one scene, and the most that there could be: Σ_s min(a_s, b_s)."""
    import numpy as np

    left, right = (np.array([Path(n).stem.rpartition("-")[0] for n in names]) for names in (a, b))
    names = np.unique(np.concatenate([left, right]))
    rows, columns = F.sum(axis=1), F.sum(axis=0)
    possible = sum(min(rows[left == s].sum(), columns[right == s].sum()) for s in names)
    return float(F[left[:, None] == right[None, :]].sum()), float(possible)


# ── all against all ───────────────────────────────────────────────────────────────────────────────────────────────


def matrix_panel(folder: Path, seed: int) -> Panel:
    """Some albums of each scene, all against all."""
    import numpy as np

    from likewise import plot
    from likewise.plot.report import Section
    from likewise.sets import distances
    from likewise.sets.metrics import accuracy, one_nn

    with step(f"{len(samples.SCENES) * samples.ALBUMS} albums, all against all") as said:
        albums = samples.scenes(folder / "albums" / "scenes", seed)
        sets = [embedded(files, files[0].parent.parent.name) for files in albums]
        labels = [str(s.level) for s in sets]
        D = distances(sets, value="divergence")
        figure = plot.heatmap(D, labels, title=f"{len(D)} albums, all against all")
        figure.set_size_inches(7.0, 6.0)
        plot.save(figure, folder / "albums.png")
        others = np.array(D)
        np.fill_diagonal(others, np.inf)
        right = accuracy(labels, one_nn(others, labels))
        ratio = float(np.median(D[~_same(labels)]) / np.median(D[_same(labels) & ~np.eye(len(D), dtype=bool)]))
        said.append(f"nearest album is of the same scene for {right:.0%}")
    text = (
        f"{samples.ALBUMS} albums of each of {len(samples.SCENES)} scenes, {samples.PICTURES} photographs an album, "
        f"every pair compared. For {right:.0%} of the albums the nearest other album shows the same "
        f"scene; the median distance between scenes is {ratio:.1f} times that within one.",
    )
    section = Section(
        "All against all",
        text,
        folder / "albums.png",
        f"A square matrix of distances between {len(D)} albums, grouped by scene: dark blocks of small distances along "
        "the diagonal, light elsewhere.",
        "Near is dark, far is light. The divergence form of the distance, which is 0 between a set and itself. "
        f"{len(D) * (len(D) - 1) // 2} pairs.",
        wide="36rem",
    )
    figures = {"albums": len(D), "nearest_is_same_scene": right, "between_over_within": ratio}
    return Panel("matrix", "albums.png", figures, ("of albums find their own scene", f"{right:.0%}"), section)


def _same(labels: Sequence[str]) -> NDArray[np.bool_]:
    import numpy as np

    names = np.asarray(labels)
    return np.asarray(names[:, None] == names[None, :])


# ── a metric that learns to see past the light ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Pages:
    """Pages of handwritten digits, each under one light: pictures (n, PAGE, 8, 8) in [0, 1], and which digit."""

    pictures: Floats
    labels: NDArray[np.int64]

    def sets(self) -> list[Signature]:
        """A page as a set: a point a digit, its 64 pixels."""
        from likewise.types import Signature

        return [Signature(page.reshape(PAGE, -1)) for page in self.pictures]


def pages(images: Floats, digits: NDArray[np.int64], count: int, draw: np.random.Generator) -> Pages:
    """Pages of PAGE different writings of one digit; light falls on a page from one side, more or less of it.

    The light is a ramp of brightness with a drawn direction and offset, as large as the ink itself.
    """
    import numpy as np

    across, down = np.meshgrid(np.linspace(-0.5, 0.5, 8), np.linspace(-0.5, 0.5, 8))
    labels = np.arange(count) % DIGITS
    made = []
    for digit in labels:
        turn, offset = draw.uniform(0, 2 * np.pi), draw.uniform(-0.5, 0.5)
        light = np.cos(turn) * across + np.sin(turn) * down + offset
        written = images[draw.choice(np.flatnonzero(digits == digit), PAGE, replace=False)]
        made.append((written + light + 1.25) / 3.5)
    return Pages(np.stack(made), labels)


@dataclass(frozen=True, eq=False)
class Trial:
    """One draw of training and test pages, and which training page each method finds nearest to each test page."""

    train: Pages
    test: Pages
    nearest: dict[str, NDArray[np.int64]]

    def accuracy(self, method: str) -> float:
        """How often the nearest page shows the same digit."""
        return float((self.train.labels[self.nearest[method]] == self.test.labels).mean())


METHODS = {"mean": "distance of the means", "unlearned": "transport, unlearned", "learned": "transport, learned"}


def trial(images: Floats, digits: NDArray[np.int64], draw: np.random.Generator) -> Trial:
    """Learn on pages written with one half of the digits, test on pages written with the other half."""
    import numpy as np

    from likewise.papers.mlml.rivals import Unlearned
    from likewise.sets import WassersteinLMNN

    order = draw.permutation(len(images))
    halves = np.array_split(order, 2)
    train, test = (
        pages(images[half], digits[half], count, draw)
        for half, count in zip(halves, (TRAIN_PAGES, TEST_PAGES), strict=True)
    )
    X, Y = train.sets(), test.sets()
    learned = WassersteinLMNN(multilevel=False).fit(X, train.labels)
    found = {
        "mean": Unlearned("euclid").fit(X, train.labels.tolist()).pairwise(Y, X),
        "unlearned": Unlearned("sinkhorn").fit(X, train.labels.tolist()).pairwise(Y, X),
        "learned": learned.pairwise(Y),
    }
    return Trial(train, test, {name: np.asarray(D.argmin(axis=1), dtype=np.int64) for name, D in found.items()})


def light_panel(folder: Path, seed: int) -> Panel:
    """A metric learned on pages under some lights, on pages under others."""
    import numpy as np
    from sklearn.datasets import load_digits

    from likewise.plot.report import Section, Table
    from likewise.sets.metrics import mean_se

    bunch = load_digits()
    images, digits = np.asarray(bunch.images, dtype=np.float64) / 16, np.asarray(bunch.target, dtype=np.int64)
    with step("a metric that learns to see past the light") as said:
        trials = [trial(images, digits, np.random.default_rng([seed, 3, r])) for r in range(RESAMPLES)]
        scores = {name: [t.accuracy(name) for t in trials] for name in METHODS}
        table = {name: mean_se(values) for name, values in scores.items()}
        _draw_light(trials[0], table, folder / "light.png")
        said.append(f"{table['unlearned'][0]:.1%} unlearned, {table['learned'][0]:.1%} learned, on held-out pages")
    text = (
        f"A page holds {PAGE} writings of one digit under one light: it falls from some side, and there is more or "
        "less of it. To the plain distance, pages under one light look alike, whatever is written on them.",
        f"From {TRAIN_PAGES} labelled pages, `WassersteinLMNN` learns which differences to ignore. On {TEST_PAGES} "
        "pages of other writings under other lights, the nearest page shows the same digit for "
        f"{table['learned'][0]:.1%}, against {table['unlearned'][0]:.1%} unlearned (mean of {RESAMPLES} draws).",
    )
    rows = [(METHODS[n], f"{m:.1%}", f"{100 * e:.1f}") for n, (m, e) in table.items()]
    section = Section(
        "A metric that learns to see past the light",
        text,
        folder / "light.png",
        "Rows of small handwritten digits under uneven light. For each query page, the nearest page by the unlearned "
        "distance is lit alike but shows another digit; by the learned distance it shows the same digit.",
        "Above: test pages that the unlearned distance gets wrong and the learned one right, one a digit. Below: all "
        "test pages. Handwriting: scikit-learn's digits; the light is ours.",
        Table(("nearest page by", "correct", "± s.e. (points)"), rows, best=len(rows) - 1),
        wide="46rem",
    )
    figures = {n: {"draws": scores[n], "mean": m, "se": e} for n, (m, e) in table.items()}
    fact = (f"learned, against {table['unlearned'][0]:.1%} unlearned, on held-out pages", f"{table['learned'][0]:.1%}")
    return Panel("light", "light.png", figures, fact, section)


def _draw_light(t: Trial, table: dict[str, tuple[float, float]], path: Path) -> None:
    """Some test pages with their nearest pages, unlearned and learned; below, how often each method is right."""
    from matplotlib.figure import Figure

    from likewise import plot

    fig = Figure(figsize=(7.4, 6.36), facecolor="white")
    fig.text(0.057, 0.937, "nearest page, before and after learning", size=12.5, color=plot.INK, va="center")
    chosen = _telling(t, 5)
    columns = ((0.115, "page"), (0.405, "nearest, unlearned"), (0.695, "nearest, learned"))
    for left, words in columns:
        fig.text(left, 0.868, words, size=9.5, color=plot.INK, va="bottom")
    for r, query in enumerate(chosen):
        bottom = 0.772 - 0.104 * r
        found = [t.nearest[m][query] for m in ("unlearned", "learned")]
        strips = [t.test.pictures[query], *(t.train.pictures[i] for i in found)]
        digits = [t.test.labels[query], *(t.train.labels[i] for i in found)]
        for (left, _), strip, digit in zip(columns, strips, digits, strict=True):
            _strip(fig, strip, left, bottom)
            wrong = digit != digits[0]
            fig.text(
                left - 0.02,
                bottom + 0.039,
                str(digit),
                size=11,
                ha="right",
                va="center",
                weight="bold" if not wrong else "normal",
                color=plot.PALETTE[1] if wrong else plot.INK,
            )
    _shares(fig, table)
    plot.save(fig, path)


def _telling(t: Trial, count: int) -> list[int]:
    """Test pages that the unlearned distance gets wrong and the learned one right, each of another digit."""
    import numpy as np

    wrong = t.train.labels[t.nearest["unlearned"]] != t.test.labels
    right = t.train.labels[t.nearest["learned"]] == t.test.labels
    found: dict[int, int] = {}
    for i in np.flatnonzero(wrong & right):
        found.setdefault(int(t.test.labels[i]), int(i))
    return list(found.values())[:count]


def _strip(fig: Any, digits: Floats, left: float, bottom: float) -> None:
    """The digits of a page in a row."""
    import numpy as np

    ax = fig.add_axes((left, bottom, 0.25, 0.0775))
    ax.imshow(np.hstack(list(digits)), cmap="gray_r", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.axis("off")


def _shares(fig: Any, table: dict[str, tuple[float, float]]) -> None:
    from likewise import plot

    ax = fig.add_axes((0.295, 0.075, 0.50, 0.22))
    for i, (name, (mean, error)) in enumerate(table.items()):
        ours = name == "learned"
        ax.barh(i, mean, height=0.6, color=plot.PALETTE[0] if ours else "#B9C4CC")
        ax.plot([mean - error, mean + error], [i, i], color=plot.INK, lw=1.1, solid_capstyle="butt")
        words = f"{mean:.1%} ± {100 * error:.1f}"
        ax.text(
            mean + error + 0.015, i, words, size=9, va="center", color=plot.INK, weight="bold" if ours else "normal"
        )
    ax.set_yticks(range(len(table)), [METHODS[name] for name in table], size=9)
    ax.set(ylim=(len(table) - 0.45, -0.55), xlim=(0, 1.02), xticks=[])
    ax.tick_params(axis="y", length=0, colors=plot.INK)
    for spine in ax.spines.values():
        spine.set_visible(False)
    words = f"held-out pages whose nearest page shows the same digit, mean ± s.e. of {RESAMPLES} draws"
    fig.text(0.5, 0.034, words, size=6.5, color=plot.QUIET, ha="center", va="center")
