"""`likewise demo`: find a place again by night, align it, show why; then the other levels. All is computed here.

demo/
  report.html      the page: everything below in one file
  place.png, search.png, copies.png, alignment.png, plan.png, polarity.png, demo.json
  search.html      the search, with its reasons; index/ is the index that was searched
  photos/, night.jpg, workshop/, albums/   the images that were compared, to try the commands on
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import out_flag, seed_flag

Panel = tuple[str, dict[str, Any], tuple[str, str], "Section"]
"""What is shown: its name, its figures, the fact at the top, and its part of the page."""

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from likewise.pixels.compare import PixelComparison
    from likewise.plot.report import Section
    from likewise.search import Hit

WITHIN = 3.0
"""Pixels within which a pixel counts as found."""
HITS = 5
"""Hits of the search that are shown."""
RHOS, LATENTS, TOP, ACROSS = (-1.0, -0.5, 0.0, 0.5, 1.0), 240, 3, 12
"""The generator: polarities, latents of the bank, singular values in a volume, and images in a row."""


@click.command(cls=Command)
@out_flag("demo", "the folder to write to")
@seed_flag
def demo(out: str, seed: int) -> None:
    """Find a place again by night, align it, show why; then the other levels. About a minute, no download.

    Writes report.html, the figures of its panels and their numbers as JSON.

    \b
    likewise demo --out demo
    """
    folder, began = terminal.check_writable(Path(out)), time.perf_counter()
    panels = place_panels(folder, seed)
    panels += [make(folder, seed) for make in (pixels_panel, albums_panel, polarity_panel)]
    seconds = time.perf_counter() - began
    figures = {name: found for name, found, _, _ in panels}
    terminal.write_json(folder / "demo.json", {"seed": seed, "seconds": round(seconds, 1), **figures})
    click.echo(f"\n{_page(panels, folder, seconds, seed).absolute()}")


@contextmanager
def step(words: str) -> Iterator[list[str]]:
    """A line that says what is being done, then what came of it and how long it took."""
    began = time.perf_counter()
    said: list[str] = []
    click.echo(f"{words} … ", nl=False)
    yield said
    click.echo(f"{' '.join(said)} ({time.perf_counter() - began:.0f} s)")


# ── the story ─────────────────────────────────────────────────────────────────────────────────────────────────────


def place_panels(folder: Path, seed: int) -> list[Panel]:
    """Roofs by night, searched for among photos by day; what joins both; and the copies among the photos."""
    from likewise import plot, samples
    from likewise.pixels import compare
    from likewise.plot.report import Section
    from likewise.search import Collection

    with step("photos are indexed, and one made night is searched for among them") as said:
        photos, query = samples.archive(folder, seed)
        with Collection.build(photos, folder / "index") as collection:
            result = collection.search(query, HITS)
            groups, count = collection.duplicates(), len(collection)
        result.page(folder / "search.html")
        rank, hit = next(((h.rank, h) for h in result if Path(h.path).match("roofs/day.jpg")), (None, result[0]))
        evidence = hit.evidence
        inliers, matches = (0, 0) if evidence is None else (evidence.n, len(evidence.matches))
        sure = percent(hit.probability)
        said.append(f"found at rank {rank} of {count}: {hit.verdict}, {sure}; {inliers} inliers")
    with step("both are aligned, pixel by pixel") as said:
        comparison = compare(query, hit.path)
        plot.save(place_figure(hit, comparison, count), folder / "place.png", dpi=120)
        said.append(f"{comparison.aligned:.0%} of the night photo is sure")
    shown = [h for h in result if h.evidence is not None]
    words = {"same": ("the same", True), "different": ("another place", False), "unsure": ("unsure", None)}
    captions, right = (
        [f"{words[h.verdict][0]}, {h.percent}" for h in shown],
        [words[h.verdict][1] for h in shown],
    )
    hits = plot.ranking([query], [[h.path for h in shown]], right=[right], names=["by night"], captions=[captions])
    plot.save(hits, folder / "search.png")
    copies = [group.copies[1:] for group in groups]
    files, what = ([[getattr(c, name) for c in some] for some in copies] for name in ("path", "what"))
    drawn = plot.ranking([g.keep for g in groups], files, names=["keep"] * len(groups), captions=what)
    plot.save(drawn, folder / "copies.png")
    found = Section(
        "The same place by night",
        (
            f"{count} photos by day are indexed once; then a photo by night, from a spot beside, is looked for.",
            f"The place is found at rank {rank}, and likewise says why: {inliers} of {matches} matches are inliers "
            f"of one geometry; the probability that both show the same is {sure}. Then every pixel is aligned, and "
            "drawn where that is sure.",
        ),
        folder / "place.png",
        "Above, roofs by night and the same roofs by day, joined by lines; below, the photo by day where it belongs in "
        "the photo by night.",
        "Both photos are real (roofs of Venice, VLFeat, BSD-2-Clause); the night is made, in linear light, with the "
        f"noise of a sensor. Sure is {comparison.aligned:.0%} of it; most of the rest is not in the photo by day.",
    )
    order = Section(
        "The best hits",
        ("Each was verified by its matches: the same, another place, or unsure. `search.html` has the reasons.",),
        folder / "search.png",
        "A row of photographs: the roofs by night, then the hits, the roofs by day first in a green frame.",
        "Under each, the probability that it shows the same place.",
    )
    double = Section(
        "Copies among the photos",
        (
            "Copies are found by what they share, also where they were turned, mirrored, cropped or made smaller. Each "
            "says what it is; the one to keep stands at the left. Nothing is deleted.",
        ),
        folder / "copies.png",
        "A row of photographs: the one to keep at the left, its copies beside it, turned and mirrored.",
        f"{sum(map(len, copies))} copies in {len(groups)} group{'s' * (len(groups) != 1)}.",
        wide="34rem",
    )
    figures: dict[str, Any] = {"photos": count, "rank": rank, "inliers": inliers, "matches": matches}
    figures |= {"verdict": hit.verdict, "probability": hit.probability, "aligned": comparison.aligned}
    inlying = (
        f"of {matches} matches are inliers of one geometry, with the place at rank {rank} of {count}",
        str(inliers),
    )
    twice = str(sum(map(len, copies)))
    return [
        ("place", figures, inlying, found),
        (
            "search",
            {"verdicts": [h.verdict for h in shown]},
            ("is the probability that both show the same", sure),
            order,
        ),
        ("copies", {"groups": what}, ("copies found among the photos", twice), double),
    ]


def percent(chance: float) -> str:
    """A probability in per cent, which is never 100 nor 0."""
    return "> 99.9 %" if chance > 0.999 else "< 0.1 %" if chance < 0.001 else f"{100 * chance:.1f} %"


def place_figure(hit: Hit, comparison: PixelComparison, count: int) -> Figure:
    """What is said of a hit, in one picture: the verdict, lines of the inliers, the hit warped to the query."""
    import numpy as np
    from matplotlib.collections import LineCollection

    from likewise.plot.style import INK, PALETTE, figure

    if hit.evidence is None:
        raise click.ClickException(f"{hit.path} was not verified")
    evidence, wide = hit.evidence, 8.3
    one, two = evidence.images
    h, w = one.shape[:2]
    tall = 4.06 * h / w
    height = 0.85 + 2 * (tall + 0.42)
    fig = figure(wide, height)

    def words(x: float, y: float, said: str, size: float, colour: str = INK, **more: Any) -> None:
        fig.text(x / wide, 1 - y / height, said, size=size, color=colour, va="center", parse_math=False, **more)

    top = fig.add_axes((0, (height - 0.85 - tall) / height, 1, tall / height))
    top.imshow(one, extent=(0, w, h, 0))
    top.imshow(two, extent=(w * 1.044, w * 2.044, h, 0))
    some = evidence.matches.take(evidence.inliers)
    ends = np.stack([some.a + 0.5, (some.b + 0.5) * (w / two.shape[1]) + (w * 1.044, 0)], axis=1)
    top.add_collection(LineCollection(list(ends), colors="#6fe3b4", linewidths=0.7, alpha=0.75))
    top.scatter(ends[..., 0], ends[..., 1], s=5, color="#6fe3b4", linewidths=0)
    top.set(xlim=(0, w * 2.044), ylim=(h, 0))
    warped, night = comparison.warp(), np.asarray(comparison.images[0])
    sure = (comparison.confidence >= 0.5) & (warped.max(axis=2) > 0)
    laid = np.where(sure[..., None], warped, night)
    left = fig.add_axes((0, 0.42 / height, 4.06 / wide, tall / height))
    left.imshow(laid)
    right = fig.add_axes((4.24 / wide, 0.42 / height, 4.06 / wide, tall / height))
    right.imshow(laid[_closer(laid, sure)])
    for ax in (top, left, right):
        ax.axis("off")
    said = {"same": "The same place", "different": "Another place"}.get(hit.verdict, "Unsure")
    words(
        0.08,
        0.24,
        f"{said}: {percent(hit.probability)}",
        23,
        PALETTE[2] if hit.verdict == "same" else INK,
        weight="bold",
    )
    words(0.08, 0.62, f"{evidence.n} of {len(evidence.matches)} matches are inliers of one geometry", 15)
    words(0.08, 0.85 + tall + 0.2, "looked for: by night (made night)", 15)
    words(4.3, 0.85 + tall + 0.2, f"found: by day, among {count} photos", 15)
    words(0.08, height - 0.2, "day warped to night, where sure", 15)
    words(4.3, height - 0.2, "closer: edges meet", 15)
    return fig


def _closer(photo: NDArray[np.uint8], sure: NDArray[np.bool_], share: float = 0.45) -> tuple[slice, slice]:
    """The window, so large a share of each side, in which both photos meet and much is to be seen."""
    import cv2
    import numpy as np

    h, w = (round(share * n) for n in sure.shape)
    edges = np.abs(cv2.Laplacian(photo, cv2.CV_32F)).sum(axis=2)
    both = sure.astype(np.float32), edges
    inside, seen = (cv2.boxFilter(x, -1, (w, h), anchor=(0, 0))[: 1 - h, : 1 - w] for x in both)
    y, x = np.unravel_index((inside * (1 - inside) * seen).argmax(), inside.shape)
    return slice(int(y), int(y) + h), slice(int(x), int(x) + w)


# ── pixels ────────────────────────────────────────────────────────────────────────────────────────────────────────


def pixels_panel(folder: Path, seed: int) -> Panel:
    """A place by day; and by night, from a spot beside, the camera turned: where did every pixel go?"""
    import numpy as np

    from likewise import samples
    from likewise.media import write_image
    from likewise.pixels import compare
    from likewise.plot.report import Section

    with step("a place by day and by night, aligned") as said:
        truth = samples.views(seed)
        a, b = folder / "workshop" / "day.png", folder / "workshop" / "night.png"
        write_image(a, truth.day), write_image(b, truth.night)
        comparison = compare(a, b)
        comparison.plot(folder / "alignment.png")
        errors = np.linalg.norm(np.asarray(comparison.flow, dtype=np.float64) - truth.flow, axis=2)[truth.known]
        right, median = float((errors <= WITHIN).mean()), float(np.median(errors))
        said.append(f"{right:.0%} of the pixels found to {WITHIN:g} px, median error {median:.1f} px")
    text = (
        "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned by "
        f"{samples.TURN:.0f}°. The two cameras are real, night and turn are ours, so each pixel's error is known.",
        f"The network that comes with likewise finds {right:.0%} of the pixels to {WITHIN:g} px, with a median error "
        f"of {median:.1f} px. Where to trust it, it says by itself, no ground truth needed: "
        f"it is sure of {comparison.aligned:.0%} of the pixels.",
    )
    section = Section(
        "Pixels: where did this point go?",
        text,
        folder / "alignment.png",
        "A motorcycle by day, and at night from a turned camera; the one warped to the other, flow and confidence.",
        "In the checkerboard, lines go on from one square to the next where the flow is right. "
        f"{comparison.model}; photographs: Middlebury 2014, in scikit-image.",
    )
    figures = {"right": right, "median": median, "mean": float(errors.mean()), "cycle_error": comparison.distance}
    fact = (f"of the pixels of a workshop found to {WITHIN:g} px", f"{right:.0%}")
    return "pixels", {**figures, "aligned": comparison.aligned}, fact, section


# ── sets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def albums_panel(folder: Path, seed: int) -> Panel:
    """Two albums that share three of their scenes, and the plan between them."""
    from likewise import samples
    from likewise.images import default
    from likewise.plot.report import Section
    from likewise.sets import compare
    from likewise.types import Signature

    with step("two albums, compared") as said:
        albums = samples.albums(folder / "albums", seed)
        p, q = (Signature(default().embed(list(files)), names=[str(f) for f in files]) for files in albums)
        comparison = compare(p, q)
        title = f"distance {comparison.distance:.3f}"
        comparison.plot(folder / "plan.png", labels=("monday", "friday"), title=title)
        kept, possible = same_scene(comparison.plan, p.names or (), q.names or ())
        said.append(f"{title}; {kept:.1%} of the mass joins photographs of one scene")
    text = (
        "Each album is a bag of photographs: other crops, other light, another number of each. Optimal transport moves "
        "one album onto the other at the least cost, and the plan says which photograph answers to which.",
        f"The albums share cat, coffee and flower, so at most {possible:.0%} of the mass can stay within a scene. "
        f"The plan kept {kept:.1%} there without having seen a label.",
    )
    section = Section(
        "Albums: which photo answers to which?",
        text,
        folder / "plan.png",
        "Two columns of photographs joined by ribbons: cats with cats, coffee cups with cups, flowers with flowers.",
        f"The width of a line is the mass that goes along it. Smoothed Wasserstein distance {comparison.distance:.3f} "
        f"between {len(p)} and {len(q)} photographs, γ = {comparison.gamma:.3g}.",
        wide="46rem",
    )
    figures = {"distance": comparison.distance, "same_scene_mass": kept, "same_scene_possible": possible}
    fact = (f"of two albums joined scene by scene, of {possible:.0%} that can be", f"{kept:.0%}")
    return "albums", figures, fact, section


def same_scene(F: NDArray[np.float64], a: Sequence[str], b: Sequence[str]) -> tuple[float, float]:
    """The mass between photographs of one scene, and the most that there could be: Σ_s min(a_s, b_s)."""
    import numpy as np

    left, right = (np.array([Path(n).stem.rpartition("-")[0] for n in names]) for names in (a, b))
    names = np.unique(np.concatenate([left, right]))
    rows, columns = F.sum(axis=1), F.sum(axis=0)
    possible = sum(min(rows[left == s].sum(), columns[right == s].sum()) for s in names)
    return float(F[left[:, None] == right[None, :]].sum()), float(possible)


# ── distributions ─────────────────────────────────────────────────────────────────────────────────────────────────


def polarity_panel(folder: Path, seed: int) -> Panel:
    """Clothes by a small generator, a row for each ρ."""
    from likewise import plot
    from likewise.distributions import fashion_features, harvest, pretrained
    from likewise.nn.features import to_uint8
    from likewise.plot.report import Section

    with step("a generator, from its modes to its anti-modes") as said:
        generator = pretrained("fashion").in_space(fashion_features())
        bank = harvest(generator, LATENTS, k=TOP, seed=seed, progress=False)
        draws = {rho: bank.draw(ACROSS, rho, scheme="without", seed=seed) for rho in RHOS}
        rows = [to_uint8(generator(drawn.latents)) for drawn in draws.values()]
        plot.save(plot.grid(rows, [f"ρ = {rho:g}" for rho in RHOS], edge=0.62), folder / "polarity.png")
        shares = {f"{rho:g}": drawn.ess for rho, drawn in draws.items()}
        said.append(f"{LATENTS} latents; ESS {shares['-1']:.0%} at ρ = −1, {shares['1']:.0%} at ρ = 1")
    text = (
        "A small network, trained on images of clothes, draws some things often and others hardly ever. The singular "
        f"values of its Jacobian say which; they were measured once, at {LATENTS} latents.",
        "Every row is then only a matter of weights: below 0 towards what it draws most, 0 the network as it is, above "
        "0 towards what it draws least. Nothing was trained again.",
    )
    section = Section(
        "Generators: quality against diversity",
        text,
        folder / "polarity.png",
        f"{len(RHOS)} rows of {ACROSS} small grey images of clothes, plain ones above, unusual ones below.",
        f"The weight of a latent is exp(ρ v), v the sum of its {TOP} largest log-singular values in the features of a "
        f"small classifier. The effective share is {shares['-1']:.0%} at ρ = −1 and {shares['1']:.0%} at ρ = 1.",
        wide="46rem",
    )
    fact = ("of a generator's latents count at ρ = −1, its most typical", f"{shares['-1']:.0%}")
    return "polarity", {"ess": shares, "latents": LATENTS, "k": TOP}, fact, section


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────────────


def _page(panels: Sequence[Panel], folder: Path, seconds: float, seed: int) -> Path:
    from likewise import __version__
    from likewise.plot.report import Page, Section
    from likewise.store.run import versions

    day, night, albums = folder / "photos" / "roofs" / "day.jpg", folder / "night.jpg", folder / "albums"
    own = Section(
        "With your own photos",
        ("The images of this page are on your disk, and so is the index. `likewise studio` shows it in the browser.",),
        code=f"likewise search {night} --index {folder / 'index'}\n"
        f"likewise search --duplicates --index {folder / 'index'}\n"
        f"likewise compare {day} {night}\n"
        f"likewise compare {albums / 'monday'} {albums / 'friday'}\n"
        "likewise distributions harvest fashion --n 2000",
    )
    used = versions()
    end = (
        f"likewise {__version__}, seed {seed}, {seconds:.0f} s on {used['platform']}, Python {used['python']}, "
        f"torch {used.get('torch', '?')}. Photographs: VLFeat, scikit-image, scikit-learn. "
        "Methods: LIFE, 2021; DiVA, ECCV 2020; Multi-Level Metric Learning via Smoothed Wasserstein Distance, IJCAI "
        "2018; Polarity Sampling, CVPR 2022."
    )
    lead = "The same place by night: found, aligned, and why. Every figure on this page was just computed."
    sections = [*(section for *_, section in panels), own]
    return Page("likewise", lead, dict(fact for _, _, fact, _ in panels), sections, end).write(folder / "report.html")
