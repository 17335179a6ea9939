"""Which of the paper's claims hold at our scale, computed from the measured tables.

"holds": in the direction claimed, by more than two standard errors (and monotonically, where that is the claim);
"fails": beyond two standard errors in the other direction, or not monotone; "not decided": within two standard errors.
Rows whose effective size is below 5 % of the bank take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy import stats

LEAST = 0.05
"""The least effective share of a bank that counts."""
DIAL = (0.5, 0.2, 0.0, -0.2, -0.5)
"""From diversity to quality."""
SETTINGS = (("feature", 3), ("preactivation", 10))
"""The space and k of a first look, and those in which the digits' DCGAN was found to be dialled the most."""
HOLDS, FAILS, OPEN = "holds", "fails", "not decided"
Row = dict[str, Any]
Rows = list[Row]


def verdicts(found: dict[str, Rows]) -> Rows:
    """A row for each claim of which the tables were measured: claim, verdict, the figures behind it."""
    rows: Rows = []
    for experiment, judge in JUDGES:
        if experiment in found:
            rows += judge(found)
    return rows


def sign(value: float, error: float, sense: int) -> str:
    """A difference that should have this sign."""
    if not abs(value) > 2 * error:
        return OPEN
    return HOLDS if np.sign(value) == sense else FAILS


def where(rows: Iterable[Row], **equal: Any) -> Rows:
    """The rows with these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in equal.items())]


def names(rows: Rows) -> list[str]:
    """The generators of a table."""
    return list(dict.fromkeys(row["generator"] for row in rows))


# ------------------------------------------------------------------------------------------------------- the dial


def dial(found: dict[str, Rows]) -> Rows:
    """Precision rises and recall falls monotonically from ρ = .5 to −.5, by space and generator."""
    rows = []
    for space in dict.fromkeys(row["space"] for row in found["sweep"]):
        for name in names(found["sweep"]):
            judged = _dials(where(found["sweep"], generator=name, space=space, by="rho"))
            good = [k for k, (verdict, _) in judged.items() if verdict == HOLDS]
            best = max(good, key=lambda k: judged[k][1]["swing"]) if good else None
            claim = f"{name}, {space} space: precision rises and recall falls from ρ = .5 to −.5"
            verdict = HOLDS if good else (OPEN if any(v == OPEN for v, _ in judged.values()) else FAILS)
            rows.append({"claim": claim, "verdict": verdict, "figures": _dialled(judged, good, best)})
    return rows


def _dials(rows: Rows) -> dict[int, tuple[str, dict[str, Any]]]:
    """The verdict for each k that keeps the effective size from end to end."""
    judged = {}
    for k in dict.fromkeys(row["k"] for row in rows):
        line = [where(rows, k=k, rho=rho)[0] for rho in DIAL]
        if min(row["ess"] for row in line) < LEAST:
            continue
        P, R = ([row[key] for row in line] for key in ("precision", "recall"))
        up, down = _ends(line, "precision"), _ends(line, "recall")
        monotone = all(np.diff(P) >= 0) and all(np.diff(R) <= 0)
        clear = {sign(*up, 1), sign(*down, -1)}
        verdict = FAILS if FAILS in clear else OPEN if OPEN in clear else HOLDS if monotone else FAILS
        ess = min(row["ess"] for row in line)
        judged[k] = verdict, {"P": P, "R": R, "swing": up[0] - down[0], "monotone": monotone, "ess": ess}
    return judged


def _ends(line: Rows, key: str) -> tuple[float, float]:
    """The difference between the last row and the first, over the same banks, and its standard error."""
    paired = np.subtract(line[-1][f"{key} by bank"], line[0][f"{key} by bank"])
    return float(paired.mean()), float(paired.std(ddof=1) / np.sqrt(len(paired)))


def _dialled(judged: dict[int, tuple[str, dict[str, Any]]], good: list[int], best: int | None) -> str:
    if not judged:
        return f"at no k is the effective size ≥ {LEAST:.0%} from end to end"
    k = best if best is not None else max(judged, key=lambda k: judged[k][1]["swing"])
    about = judged[k][1]
    P, R = (" ".join(f"{v:.3f}" for v in about[key]) for key in ("P", "R"))
    which = f"at k = {', '.join(map(str, good))} of {', '.join(map(str, judged))}; " if good else ""
    return f"{which}k = {k}: precision {P}, recall {R}, ESS ≥ {about['ess']:.2f}, monotone: {about['monotone']}"


def control(found: dict[str, Rows]) -> Rows:
    """At ρ = −.5: more precision and less recall than the same weights dealt at random."""
    rows = []
    for name in names(found["sweep"]):
        for (space, k), key, sense in ((at, *how) for at in SETTINGS for how in (("precision", 1), ("recall", -1))):
            cell = where(found["sweep"], generator=name, space=space, k=k, rho=-0.5, by="rho")[0]
            value, error = cell[f"beyond control {key}"], cell[f"beyond control {key} ±"]
            moved = "gains" if sense > 0 else "loses"
            claim = f"{name}, {space} space, k = {k}: at ρ = −.5 {key} {moved} by volumes, not by repetition"
            figures = f"{value:+.3f} ± {error:.3f} against the same weights dealt at random, ESS {cell['ess']:.2f}"
            rows.append({"claim": claim, "verdict": sign(value, error, sense), "figures": figures})
    return rows


def frechet(found: dict[str, Rows]) -> Rows:
    """Some ρ ≠ 0 lowers the Fréchet distance; chosen on two banks, tested on the others."""
    rows = []
    for name in names(found["sweep"]):
        able = [r for r in where(found["sweep"], generator=name) if r["ess"] >= LEAST and r["rho"] != 0]
        best = min(able, key=lambda r: float(np.mean(r["Δ frechet by bank"][:2])))
        rest = np.asarray(best["Δ frechet by bank"][2:] or [np.nan])
        value, error = float(rest.mean()), float(rest.std(ddof=1) / np.sqrt(len(rest))) if len(rest) > 1 else np.inf
        at = f"{best['space']}, k = {best['k']}, ρ = {best['rho']:.2f}, ESS {best['ess']:.2f}"
        figures = f"{value:+.2f} ± {error:.2f} on the banks it was not chosen on ({at}); {_plain(found, name)}"
        claim = f"{name}: some ρ ≠ 0 lowers the Fréchet distance"
        rows.append({"claim": claim, "verdict": sign(value, error, -1), "figures": figures})
    return rows


def _plain(found: dict[str, Rows], name: str) -> str:
    zero = where(found["sweep"], generator=name, rho=0.0)[0]
    return f"{zero['frechet']:.2f} ± {zero['frechet ±']:.2f} at ρ = 0"


def setting(found: dict[str, Rows]) -> Rows:
    """At equal cost (an effective size of 25 % on both sides), which space and k dial the most?"""
    rows = []
    for name in names(found["sweep"]):
        swings = []
        for row in where(found["sweep"], generator=name, by="-0.25"):
            other = where(found["sweep"], generator=name, space=row["space"], k=row["k"], by="0.25")[0]
            P, R = (_ends([other, row], key) for key in ("precision", "recall"))
            swings.append((P, R, row, other))
        clear = [s for s in swings if sign(*s[0], 1) == sign(*s[1], -1) == HOLDS]
        claim = f"{name}: quality and diversity are dialled (ESS 25 % on both sides)"
        if not clear:
            rows.append({"claim": claim, "verdict": OPEN, "figures": "in no space and at no k both beyond 2 s.e."})
            continue
        P, R, row, other = max(clear, key=lambda s: min(s[0][0], -s[1][0]))
        figures = (
            f"most in {row['space']} space, k = {row['k']}: ρ = {row['rho']:.2f} against {other['rho']:.2f}, precision "
            f"{P[0]:+.3f} ± {P[1]:.3f}, recall {R[0]:+.3f} ± {R[1]:.3f}; clear in {len(clear)} of {len(swings)}"
        )
        rows.append({"claim": claim, "verdict": HOLDS, "figures": figures})
    return rows


# ------------------------------------------------------------------------------------------- truncation and lengths


def frontier(found: dict[str, Rows]) -> Rows:
    """At the recall of a draw at ρ < 0, truncation has less precision."""
    if "sweep" not in found:
        return []
    rows = []
    for name, (space, k) in ((name, at) for name in names(found["truncation"]) for at in SETTINGS):
        cut = sorted(where(found["truncation"], generator=name), key=lambda r: r["recall"])
        able = [
            r
            for r in where(found["sweep"], generator=name, space=space, k=k)
            if r["rho"] < 0 and r["ess"] >= 0.25 and cut[0]["recall"] <= r["recall"] <= cut[-1]["recall"]
        ]
        claim = f"{name}, {space} space, k = {k}: at equal recall polarity has more precision than truncation"
        if not able:
            rows.append({"claim": claim, "verdict": OPEN, "figures": "no draw has a recall that truncation reaches"})
            continue
        gains = [r["precision"] - np.interp(r["recall"], *_columns(cut, "recall", "precision")) for r in able]
        errors = [r["precision ±"] + np.interp(r["recall"], *_columns(cut, "recall", "precision ±")) for r in able]
        value, error = float(np.mean(gains)), float(np.mean(errors))
        figures = (
            f"{value:+.3f} ± {error:.3f} on the mean of {len(gains)} draws, {min(gains):+.3f} to {max(gains):+.3f}"
        )
        rows.append({"claim": claim, "verdict": sign(value, error, 1), "figures": figures})
    return rows


def _columns(rows: Rows, *keys: str) -> list[list[float]]:
    return [[row[key] for row in rows] for key in keys]


def lengths(found: dict[str, Rows]) -> Rows:
    """Volumes are not the latents' lengths under another name: less than a quarter of the rank variance is shared."""
    rows = []
    for row in where(found["norms"], space="feature"):
        shared = row["rank correlation"] ** 2
        claim = f"{row['generator']}: weighing volumes is not truncating latents (C.2)"
        figures = f"rank correlation of v_{row['k']} and ‖z‖ {row['rank correlation']:+.2f} ± {row['±']:.2f}"
        rows.append({"claim": claim, "verdict": HOLDS if shared < 0.25 else FAILS, "figures": figures})
    return rows


def recovered(found: dict[str, Rows]) -> Rows:
    """Under truncation, ρ > 0 brings recall back (C.3)."""
    rows = []
    for name in names(found["truncated-polarity"]):
        for psi in dict.fromkeys(r["psi"] for r in where(found["truncated-polarity"], generator=name)):
            able = [r for r in where(found["truncated-polarity"], generator=name, psi=psi) if r["rho"] > 0]
            able = [r for r in able if r["ess"] >= LEAST]
            best = max(able, key=lambda r: r["Δ recall"])
            figures = (
                f"ρ = {best['rho']}: recall {best['Δ recall']:+.3f} ± {best['Δ recall ±']:.3f}, precision "
                f"{best['Δ precision']:+.3f} ± {best['Δ precision ±']:.3f}, Fréchet {best['Δ frechet']:+.2f} ± "
                f"{best['Δ frechet ±']:.2f}, ESS {best['ess']:.2f}"
            )
            claim = f"{name}: at ψ = {psi}, ρ > 0 brings recall back (C.3)"
            verdict = sign(best["Δ recall"], best["Δ recall ±"], 1)
            rows.append({"claim": claim, "verdict": verdict, "figures": figures})
    return rows


# --------------------------------------------------------------------------------------------- what changes with ρ


def monotone(experiment: str, column: str, claim: str, sense: int = 1) -> Callable[[dict[str, Rows]], Rows]:
    """A judge: the column grows (sense 1) with ρ, at every step and beyond 2 s.e. between the ends of the dial."""

    def judge(found: dict[str, Rows]) -> Rows:
        rows = []
        for name in names(found[experiment]):
            line = [r for r in where(found[experiment], generator=name) if r["ess"] >= LEAST]
            line.sort(key=lambda r: r["rho"])
            ends = [(r[f"Δ {column}"], r[f"Δ {column} ±"]) for r in (line[0], line[-1])]
            sides = {sign(*ends[0], -sense), sign(*ends[1], sense)}
            steps = all(sense * np.diff([r[column] for r in line]) >= 0)
            verdict = FAILS if FAILS in sides else OPEN if OPEN in sides else HOLDS if steps else FAILS
            figures = ", ".join(f"{r[column]:.4g} (ρ = {r['rho']:g})" for r in line)
            rows.append({"claim": f"{name}: {claim}", "verdict": verdict, "figures": figures})
        return rows

    return judge


def law(found: dict[str, Rows]) -> Rows:
    """σ² of the Jacobian follows Marchenko and Pastur's law: no gap of more than 5 % between distributions."""
    rows = []
    for name in names(found["spectra"]):
        zero = where(found["spectra"], generator=name, rho=0.0)[0]
        gap = zero["distance to law"]
        claim = f"{name}: squared singular values follow the law of Marchenko and Pastur (Fig. 13)"
        figures = f"largest gap of the distributions {gap:.3f} ± {zero['distance to law ±']:.3f}"
        rows.append({"claim": claim, "verdict": HOLDS if gap < 0.05 else FAILS, "figures": figures})
    return rows


def sizes(found: dict[str, Rows]) -> Rows:
    """A larger bank lowers the Fréchet distance of the same draw (Tab. 3)."""
    rows = []
    for name in names(found["sizes"]):
        for rho in dict.fromkeys(r["rho"] for r in found["sizes"]):
            line = sorted(where(found["sizes"], generator=name, rho=rho), key=lambda r: r["N"])
            value, error = _ends(line, "frechet")
            claim = f"{name}: at ρ = {rho}, a larger bank lowers the Fréchet distance (Tab. 3)"
            figures = ", ".join(f"{r['frechet']:.2f} (N = {r['N']}, {r['distinct']:.0%} distinct)" for r in line)
            rows.append({"claim": claim, "verdict": sign(value, error, -1), "figures": figures})
    return rows


def colours(found: dict[str, Rows]) -> Rows:
    """ρ > 0 draws more of the rare colour, and the more the real share is shifted to it the larger the best ρ (C.1)."""
    rows = []
    for space in dict.fromkeys(r["space"] for r in found["colours"]):
        line = [r for r in where(found["colours"], space=space) if r["ess"] >= LEAST]
        line.sort(key=lambda r: r["rho"])
        value, error = _ends(line, "cyan")
        steps = all(np.diff([r["cyan"] for r in line]) >= 0)
        verdict = sign(value, error, 1)
        figures = ", ".join(f"{r['cyan']:.3f} (ρ = {r['rho']:g})" for r in line)
        claim = f"coloured digits, {space} space: the rare colour is drawn more as ρ grows (C.1)"
        rows.append({"claim": claim, "verdict": verdict if steps or verdict != HOLDS else FAILS, "figures": figures})
        rows.append(_suited(line, space))
    return rows


def _suited(line: Rows, space: str) -> Row:
    shares = [
        float(key.removeprefix("frechet at ")) for key in line[0] if key.startswith("frechet at ") and "±" not in key
    ]
    best = [min(line, key=lambda r, s=s: r[f"frechet at {s:g}"])["rho"] for s in shares]  # type: ignore[misc]
    order = float(stats.spearmanr(shares, best)[0]) if len(set(best)) > 1 else 0.0
    figures = ", ".join(f"ρ = {rho:g} (real share {s:g})" for s, rho in zip(shares, best, strict=True))
    grows = all(np.diff(best) >= 0)
    verdict = HOLDS if order > 0 and grows else FAILS if order < 0 else OPEN
    claim = f"coloured digits, {space} space: a shift to the rare colour is best met by a larger ρ (C.1)"
    return {"claim": claim, "verdict": verdict, "figures": figures}


JUDGES: tuple[tuple[str, Callable[[dict[str, Rows]], Rows]], ...] = (
    ("sweep", dial),
    ("sweep", setting),
    ("sweep", control),
    ("sweep", frechet),
    ("truncation", frontier),
    ("norms", lengths),
    ("truncated-polarity", recovered),
    ("sizes", sizes),
    (
        "likelihood",
        monotone("likelihood", "bits a pixel", "pictures are likelier towards modes (as we read C.4)"),
    ),
    ("path-lengths", monotone("path-lengths", "step 1e-4", "path length (1e-4) falls towards modes (as we read C.5)")),
    ("path-lengths", monotone("path-lengths", "step 0.3", "path length (0.3) falls towards modes (as we read C.5)")),
    ("spectra", law),
    ("spectra", monotone("spectra", "mean log σ", "singular values grow with ρ (Fig. 13)")),
    ("colours", colours),
)
