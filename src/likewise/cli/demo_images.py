"""The demo's panel on images: a gallery of places in photographs, searched by other pictures of the same places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from likewise.cli.demo import SCENES, Panel, photograph, step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.cli.report import Section
    from likewise.types import Hit

    Picture = NDArray[np.uint8]

Point: TypeAlias = tuple[float, float]

MORE = {
    "brick": ("skimage.data", "brick.png"),
    "cameraman": ("skimage.data", "camera.png"),
    "coins": ("skimage.data", "coins.png"),
    "grass": ("skimage.data", "grass.png"),
    "gravel": ("skimage.data", "gravel.png"),
    "moon": ("skimage.data", "moon.png"),
    "motorcycle": ("skimage.data", "motorcycle_left.png"),
    "retina": ("skimage.data", "retina.jpg"),
}
PHOTOS = {**SCENES, **MORE}
"""Photographs that are installed with scikit-image and scikit-learn; half of them are textures or nearly so."""

PLACES, SIDE, EDGE = 6, 140, 160
"""Places of a photograph, at most; the side of one in pixels of the photograph, and of its picture."""
ROWS, HITS = 6, 7
"""Searches that are drawn, and hits of each."""


def places_panel(folder: Path, seed: int) -> Panel:
    """Places in photographs, looked up by pictures of them in other light, turned, and from another crop."""
    import tempfile

    import numpy as np

    from likewise.images import Gallery, default

    draw = np.random.default_rng([seed, 5])
    with step("a gallery, searched") as said:
        queries = pictures(folder / "places", folder / "queries", draw)
        with tempfile.TemporaryDirectory() as place, Gallery.build(default(), folder / "places", place) as gallery:
            found = gallery.search([q.path for q in queries], k=HITS)
            size, model = len(gallery), gallery.store.about.model
        figures = scores(queries, found) | {"places": size, "photographs": len(PHOTOS)}
        _draw(queries, found, folder / "search.png", draw)
        said.append(f"{figures['first']} of {figures['queries']} queries find their place first, among {size}")
    fact = (f"of queries find their place first, among {size}", f"{figures['first'] / figures['queries']:.0%}")
    return Panel("places", "search.png", figures, fact, _section(folder / "search.png", figures, model))


# ── pictures of places ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Query:
    """A picture of a place, by what was changed; `place` is the picture of it in the gallery."""

    path: Path
    place: Path
    change: str


def pictures(places: Path, queries: Path, draw: np.random.Generator) -> list[Query]:
    """Write a picture of every place into one folder, and one a change into another; the queries."""
    from likewise.io import write_image

    made = []
    for name, source in PHOTOS.items():
        photo = photograph(*source)
        for number, centre in enumerate(spots(photo, draw), start=1):
            place = write_image(places / name / f"{number}.jpg", cut(photo, centre), quality=92)
            for change, changed in CHANGES.items():
                file = queries / name / f"{number}-{change.replace(' ', '-')}.jpg"
                made.append(Query(write_image(file, changed(photo, centre, draw), quality=92), place, change))
    return made


def spots(photo: Picture, draw: np.random.Generator) -> list[Point]:
    """Centres of squares that do not overlap, spread over a photograph: PLACES of them, or all if there are fewer."""
    rows, columns = (n // SIDE for n in photo.shape[:2])
    high, wide = photo.shape[0] / rows, photo.shape[1] / columns
    every = [((c + 0.5) * wide, (r + 0.5) * high) for r in range(rows) for c in range(columns)]
    return [every[i] for i in sorted(draw.permutation(len(every))[:PLACES])]


def cut(photo: Picture, centre: Point, side: float = SIDE, turn: float = 0.0) -> Picture:
    """The square of a photograph around a point, turned by so many degrees; beyond its edge, a mirror."""
    import cv2
    import numpy as np

    matrix = np.asarray(cv2.getRotationMatrix2D(centre, turn, EDGE / side), dtype=np.float64)
    matrix[:, 2] += EDGE / 2 - np.asarray(centre)
    whole = cv2.warpAffine(photo, matrix, (EDGE, EDGE), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(whole, dtype=np.uint8)


def lit(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """The same square, half as bright or half as bright again, of another tint, the light falling from one side."""
    import numpy as np

    across, down = np.meshgrid(*[np.linspace(-0.5, 0.5, EDGE)] * 2)
    angle = draw.uniform(0, 2 * np.pi)
    ramp = 1 + 0.8 * (np.cos(angle) * across + np.sin(angle) * down)
    strength = draw.uniform(0.3, 0.55) if draw.random() < 0.5 else draw.uniform(1.4, 1.8)
    light = strength * draw.uniform(0.8, 1.2, size=3) * ramp[..., None]
    return np.asarray(np.clip(np.rint(cut(photo, centre) * light), 0, 255), dtype=np.uint8)


def turned(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """The square turned by 20 to 45 degrees, one way or the other."""
    return cut(photo, centre, turn=float(draw.choice([-1, 1]) * draw.uniform(20, 45)))


def shifted(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """Another square: moved by up to a quarter of its side each way, 0.8 to 1.25 times as large."""
    x, y = (n + d * SIDE for n, d in zip(centre, draw.uniform(-0.25, 0.25, size=2), strict=True))
    return cut(photo, (x, y), side=SIDE * float(draw.uniform(0.8, 1.25)))


CHANGES: dict[str, Callable[[Any, Point, Any], Any]] = {
    "other light": lit,
    "turned": turned,
    "another crop": shifted,
}


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def scores(queries: Sequence[Query], found: Sequence[Sequence[Hit]]) -> dict[str, Any]:
    """How many queries find their place first and among the first five, of all and for each change; and the misses."""
    ranks = [_rank(q, hits) for q, hits in zip(queries, found, strict=True)]
    photos = [Path(hits[0].path).parent.name == q.place.parent.name for q, hits in zip(queries, found, strict=True)]
    by = {change: [r for q, r in zip(queries, ranks, strict=True) if q.change == change] for change in CHANGES}
    return {
        "queries": len(queries),
        "first": sum(r == 1 for r in ranks),
        "among_five": sum(r <= 5 for r in ranks),
        "first_is_of_the_photograph": sum(photos),
        "first_by_change": {change: [sum(r == 1 for r in some), len(some)] for change, some in by.items()},
    }


def _rank(query: Query, hits: Sequence[Hit]) -> float:
    """The rank of the query's own place among the hits; infinite where it is not among them."""
    return next((h.rank for h in hits if Path(h.path).resolve() == query.place.resolve()), float("inf"))


def _draw(queries: Sequence[Query], found: Sequence[Sequence[Hit]], path: Path, draw: np.random.Generator) -> None:
    """Some searches; the query's own place is framed."""
    from likewise import plot

    chosen = _chosen(queries, draw)
    figure = plot.ranking(
        [queries[i].path for i in chosen],
        [[h.path for h in found[i]] for i in chosen],
        right=[[Path(h.path).resolve() == queries[i].place.resolve() or None for h in found[i]] for i in chosen],
        names=[queries[i].change for i in chosen],
        captions=[[f"{h.distance:.2f}" for h in found[i]] for i in chosen],
        title="a place in other light, turned, from another crop: what is nearest?",
    )
    plot.save(figure, path)


def _chosen(queries: Sequence[Query], draw: np.random.Generator) -> list[int]:
    """ROWS queries at random, as many of each change, each of another photograph; fewer where those do not suffice."""
    taken: dict[str, list[int]] = {change: [] for change in CHANGES}
    used = set[str]()
    for i in draw.permutation(len(queries)).tolist():
        some, photo = taken[queries[i].change], queries[i].place.parent.name
        if len(some) < ROWS // len(CHANGES) and photo not in used:
            some.append(i)
            used.add(photo)
    return [i for some in taken.values() for i in some]


def _section(picture: Path, figures: dict[str, Any], model: str) -> Section:
    from likewise.cli.report import Section, Table

    n, first, photo = figures["queries"], figures["first"], figures["first_is_of_the_photograph"]
    text = (
        f"{figures['places']} places in {figures['photographs']} photographs make a gallery, a picture each. It is "
        f"asked {n} times for a place it has, by a picture that it does not have: in other light, turned, or cut out "
        "anew.",
        f"{first} of the {n} queries find their own place first, {figures['among_five']} among the first five; by "
        f"chance it would be one in {figures['places']}. Nothing was trained for this. Of the {n - first} that do "
        f"not, {photo - first} find another place of the same photograph: a patch of grass is much like the next.",
    )
    by = figures["first_by_change"].items()
    rows = [(change, f"{right} of {of}", f"{right / of:.0%}") for change, (right, of) in by]
    return Section(
        "Which pictures are like this one?",
        text,
        picture,
        "Rows of small photographs: a query at the left, the nearest pictures of the gallery beside it; the picture of "
        "the same place has a green frame, mostly right beside the query.",
        "Searches drawn at random, as many of each change, each of another photograph. At the left the query, "
        "then what the gallery has nearest, with its distance; the same place is framed. Embedder: "
        f"{model}; exact search.",
        Table(("query", "its place first", ""), rows),
        wide="46rem",
    )
