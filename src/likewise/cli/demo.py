"""`likewise demo`: what likewise does, on photographs that come with its dependencies; every figure is computed here.

demo/
  report.html      the page: everything below in one file
  alignment.png, search.png, plan.png, polarity.png, demo.json
  search.html      the search, with its reasons; index/ is the index that was searched
  place/, albums/, places/   the images that were compared, to try the commands on
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
    from numpy.typing import NDArray

    from likewise.plot.report import Section

WITHIN = 3.0
"""Pixels within which a pixel counts as found."""
HITS, VERIFY = 7, 3
"""Hits of the search, and how many of the best are verified."""
DAY = "workshop/day.jpg"
"""The place of the night photo in the collection."""
RHOS, LATENTS, TOP, ACROSS = (-1.0, -0.5, 0.0, 0.5, 1.0), 240, 3, 12
"""The generator: polarities, latents of the bank, singular values in a volume, and images in a row."""


@click.command(cls=Command)
@out_flag("demo", "the folder to write to")
@seed_flag
def demo(out: str, seed: int) -> None:
    """See what likewise does, on photographs that come with it: about a minute, no download.

    Writes report.html, the figures of its panels and their numbers as JSON.

    \b
    likewise demo --out demo
    """
    folder, began = terminal.check_writable(Path(out)), time.perf_counter()
    panels = [make(folder, seed) for make in (pixels_panel, search_panel, albums_panel, polarity_panel)]
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
        a, b = folder / "place" / "day.png", folder / "place" / "night.png"
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
        "Where did this point go?",
        text,
        folder / "alignment.png",
        "A motorcycle by day, and at night from a turned camera; the one warped to the other, flow and confidence.",
        "In the checkerboard, lines go on from one square to the next where the flow is right. "
        f"{comparison.model}; photographs: Middlebury 2014, in scikit-image.",
    )
    figures = {"right": right, "median": median, "mean": float(errors.mean()), "cycle_error": comparison.distance}
    fact = ("of pixels found again at night", f"{right:.0%}")
    return "pixels", {**figures, "aligned": comparison.aligned}, fact, section


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────────


def search_panel(folder: Path, seed: int) -> Panel:
    """The workshop by night, searched for among places by day."""
    from likewise import samples
    from likewise.media import write_image
    from likewise.plot.report import Section
    from likewise.search import Collection

    with step("a place by night, searched for among places by day") as said:
        samples.gallery(folder / "places", seed)
        write_image(folder / "places" / DAY, samples.pair(seed)[0])
        with Collection.build(folder / "places", folder / "index") as collection:
            night = collection.search(folder / "place" / "night.png", HITS, verify=VERIFY)
            count = len(collection)
        night.plot(folder / "search.png")
        night.page(folder / "search.html")
        day = next((hit for hit in night if hit.path.endswith(DAY)), None)
        rank, inliers = (None, 0) if day is None else (day.rank, 0 if day.evidence is None else day.evidence.n)
        said.append(f"found at rank {rank} of {count}, {inliers} inliers")
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in night.seconds.items())
    text = (
        f"{count} places are indexed once. A query is compared with all of them by one vector, with the best of these "
        "by features that are alike, and the best three are verified by the inliers of one geometry.",
        f"The workshop by night finds itself by day at rank {rank}, with {inliers} inliers.",
    )
    section = Section(
        "Which photos show the same, and why?",
        text,
        folder / "search.png",
        "A row of photographs: the workshop by night at the left, beside it what was found, the same by day first.",
        f"Under each hit the probability that it shows the same. This search took: {took}. More of it in search.html.",
    )
    figures = {"photos": count, "rank": rank, "inliers": inliers}
    return "search", figures, (f"the rank of the place by night, among {count}", str(rank)), section


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
        "Two albums, and the plan between them",
        text,
        folder / "plan.png",
        "Two columns of photographs joined by ribbons: cats with cats, coffee cups with cups, flowers with flowers.",
        f"The width of a line is the mass that goes along it. Smoothed Wasserstein distance {comparison.distance:.3f} "
        f"between {len(p)} and {len(q)} photographs, γ = {comparison.gamma:.3g}.",
        wide="46rem",
    )
    figures = {"distance": comparison.distance, "same_scene_mass": kept, "same_scene_possible": possible}
    fact = (f"of the mass joins photographs of one scene, of {possible:.0%} that can", f"{kept:.1%}")
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
        "Quality and diversity: from modes to anti-modes",
        text,
        folder / "polarity.png",
        f"{len(RHOS)} rows of {ACROSS} small grey images of clothes, plain ones above, unusual ones below.",
        f"The weight of a latent is exp(ρ v), v the sum of its {TOP} largest log-singular values in the features of a "
        f"small classifier. The effective share is {shares['-1']:.0%} at ρ = −1 and {shares['1']:.0%} at ρ = 1.",
        wide="46rem",
    )
    fact = ("of the bank still counts at ρ = −1", f"{shares['-1']:.0%}")
    return "polarity", {"ess": shares, "latents": LATENTS, "k": TOP}, fact, section


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────────────


def _page(panels: Sequence[Panel], folder: Path, seconds: float, seed: int) -> Path:
    from likewise import __version__
    from likewise.plot.report import Page, Section
    from likewise.store.run import versions

    day, night, albums = folder / "place" / "day.png", folder / "place" / "night.png", folder / "albums"
    own = Section(
        "With your own photos",
        ("The images of this page are on your disk, and so is the index. `likewise studio` shows it in the browser.",),
        code=f"likewise compare {day} {night}\n"
        f"likewise compare {albums / 'monday'} {albums / 'friday'}\n"
        f"likewise search {night} --index {folder / 'index'}\n"
        f"likewise pixels match {day} {night}\n"
        "likewise distributions harvest fashion --n 2000",
    )
    used = versions()
    end = (
        f"likewise {__version__}, seed {seed}, {seconds:.0f} s on {used['platform']}, Python {used['python']}, "
        f"torch {used.get('torch', '?')}. Photographs: scikit-image and scikit-learn. "
        "Methods: LIFE, 2021; DiVA, ECCV 2020; Multi-Level Metric Learning via Smoothed Wasserstein Distance, IJCAI "
        "2018; Polarity Sampling, CVPR 2022."
    )
    lead = "A comparison is a number and the correspondence that justifies it. Every figure here was just computed."
    sections = [*(section for *_, section in panels), own]
    return Page("likewise", lead, dict(fact for _, _, fact, _ in panels), sections, end).write(folder / "report.html")
