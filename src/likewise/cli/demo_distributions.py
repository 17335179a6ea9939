"""The demo's panels on distributions: what one collection covers of another, and a generator's dial."""

from __future__ import annotations

import warnings
from pathlib import Path

from likewise import samples
from likewise.cli.demo import Panel, step

RHOS = (-1.0, -0.5, 0.0, 0.5, 1.0)
LATENTS, TOP, ACROSS = 240, 3, 12
"""The second panel: polarities, latents of the bank, singular values in a volume, and pictures in a row."""


def coverage_panel(folder: Path, seed: int) -> Panel:
    """Two collections of photographs; the second lacks two of the scenes of the first."""
    from likewise.distributions import compare
    from likewise.errors import SmallSampleWarning
    from likewise.images import default
    from likewise.plot.report import Section

    with step("what one collection covers of another") as said:
        here, there = samples.collections(folder / "collections", seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SmallSampleWarning)  # the page says so itself
            found = compare(here, there, features=default())
        found.plot(folder / "coverage.png", labels=("the first", "the second"))
        found.to_json(folder / "coverage.json")
        names = [Path(str(name)).stem.rpartition("-")[0] for name in found.uncovered]
        right = sum(name in samples.MISSING for name in names)
        told = f"{right} of the {len(names)} uncovered pictures show what is missing"
        said.append(f"recall {found.recall:.2f}; {told}")
    possible = samples.VIEWS * len(set(samples.MISSING) & set(samples.SCENES))
    text = (
        f"Two collections of {len(here)} and {len(there)} photographs. The second has none of "
        f"{' and '.join(samples.MISSING)}; nobody says so.",
        f"Each picture of the first is looked up in the second: is it inside the ball that reaches from some picture "
        f"there to its third neighbour? {len(names)} are not, and {right} of these show a missing scene, of {possible} "
        "that do. So the answer is not only a number: it is the list of what is not covered.",
    )
    section = Section(
        "What does one collection cover of another?",
        text,
        folder / "coverage.png",
        "Pictures that nothing in the other collection covers, beside the nearest it has; below, pictures that are.",
        f"Fréchet distance {float(found.distance):.3g}, precision {found.precision:.2f}, recall {found.recall:.2f}, "
        f"coverage {found.coverage:.2f}, under {found.net}. So few pictures make the Fréchet distance too large: it is "
        "comparable only with one of the same sizes.",
        wide="52rem",
    )
    figures = {"recall": float(found.recall), "uncovered": len(names), "uncovered_and_missing": right}
    figures |= {"missing": possible, "frechet": float(found.distance), "precision": float(found.precision)}
    fact = ("of the pictures that nothing covers show what is missing", f"{right} of {len(names)}")
    return Panel("coverage", "coverage.png", figures, fact, section)


def polarity_panel(folder: Path, seed: int) -> Panel:
    """Clothes by a small generator, a row for each ρ."""
    from likewise import plot
    from likewise.distributions import fashion_features, harvest, pretrained
    from likewise.nn.features import to_uint8
    from likewise.plot.report import Section

    with step("a generator, dialled from its modes to its anti-modes") as said:
        generator = pretrained("fashion").in_space(fashion_features())
        bank = harvest(generator, LATENTS, k=TOP, seed=seed, progress=False)
        draws = {rho: bank.draw(ACROSS, rho, scheme="without", seed=seed) for rho in RHOS}
        rows = [to_uint8(generator(drawn.latents)) for drawn in draws.values()]
        labels = [f"ρ = {rho:g}" for rho in RHOS]
        plot.save(plot.grid(rows, labels, edge=0.62), folder / "polarity.png")
        shares = {f"{rho:g}": drawn.ess for rho, drawn in draws.items()}
        said.append(f"{LATENTS} latents; ESS {shares['-1']:.0%} at ρ = −1, {shares['1']:.0%} at ρ = 1")
    text = (
        "A small network, trained on pictures of clothes, draws some things often and others hardly ever. The "
        "singular values of its Jacobian say which: where it squeezes its latent space samples pile up, where it "
        f"stretches it they are thin. They were measured once, at {LATENTS} latents.",
        "Every row is then only a matter of weights: below 0 towards what it draws most, 0 the network as it is, above "
        "0 towards what it draws least. Nothing was trained again.",
    )
    section = Section(
        "One dial: from modes to anti-modes",
        text,
        folder / "polarity.png",
        f"{len(RHOS)} rows of {ACROSS} small grey pictures of clothes, plain ones above, unusual ones below.",
        f"The weight of a latent is exp(ρ v), v the sum of its {TOP} largest log-singular values in the features of a "
        f"small classifier. The effective share of the bank is {shares['-1']:.0%} at ρ = −1, {shares['-0.5']:.0%} at "
        f"−0.5, {shares['0.5']:.0%} at 0.5 and {shares['1']:.0%} at 1.",
        wide="46rem",
    )
    fact = ("of the bank still counts at ρ = −1", f"{shares['-1']:.0%}")
    return Panel("polarity", "polarity.png", {"ess": shares, "latents": LATENTS, "k": TOP}, fact, section)
