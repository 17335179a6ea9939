"""evaluate(model, dataset): how well a model's flow, and the matches that it guides, agree with what is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise.errors import FileError, InputError, ShapeError
from likewise.pixels import metrics, robust
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.geometry import Side
from likewise.pixels.matching import match
from likewise.store.run import progress as progress_bar
from likewise.types import Matches

Matcher: TypeAlias = Callable[["Tensor", "Tensor"], Matches]
Row: TypeAlias = dict[str, Any]
Floats: TypeAlias = NDArray[np.float64]

SIZE = 480
"""The shortest side in pixels at which flow is measured unless another is asked for, as for HPatches elsewhere."""
MMA_SHOWN = (1, 3, 5, 10)


class Flows(Protocol):
    """Anything that gives a flow (h, w, 2) for two images (3, h, w) in [0, 1]."""

    def flow(self, a: Any, b: Any) -> Any: ...


def evaluate(
    model: Flows,
    dataset: FlowDataset,
    *,
    size: int | None = SIZE,
    side: Side = "shortest",
    matching: bool | Matcher = False,
    progress: bool = False,
) -> dict[str, Any]:
    """The figures of a model on pairs of which something is known, in all, by group and by pair.

    Parameters
    ----------
    model : object with .flow(a, b)
        Gives the flow (h, w, 2) of two tensors (3, h, w) in [0, 1].
    dataset : FlowDataset
        The pairs.
    size : int, optional
        The shortest (or longest) side of each image in pixels; None for its own.
    side : {"shortest", "longest"}
        Which side `size` means.
    matching : bool or callable
        True: also measure `pixels.match` guided by the model; or a function of a and b that gives Matches.
    progress : bool
        Show a bar on stderr.

    Returns
    -------
    dict
        With dense truth "aepe", "acc@1", "acc@3", "acc@5" and "fl"; where it is known what b does not show, "aepe
        visible" and "aepe occluded". With points "sparse@1" … With `matching` "matches", with a homography "mma@1" …
        and the same of stage 1 alone, "corners@5"; with cameras "median rotation" and "median translation" in degrees,
        shares of both right to 10° under "pose", and "auc@5" …. Figures are means over pairs, each of the same weight;
        "fl" is over all known pixels, as KITTI has it. The same under "groups" and "pairs"; pairs whose files cannot be
        read are left out and named under "skipped".

    Raises
    ------
    InputError
        Where no pair can be read, or nothing can be measured on one.

    Examples
    --------
    >>> import numpy as np
    >>> import likewise as lw
    >>> image = np.random.default_rng(0).integers(0, 255, (72, 96, 3), np.uint8)
    >>> pairs = lw.pixels.FlowDataset([lw.pixels.FlowPair(image, image, homography=np.eye(3))])
    >>> lw.pixels.evaluate(lw.pixels.default(), pairs)["aepe"] < 0.05
    True
    """
    if not isinstance(dataset, FlowDataset):
        raise InputError(f"dataset: expected a FlowDataset, got {type(dataset).__name__}")
    matcher = _matcher(model, matching)
    rows, skipped = [], []
    with progress_bar(len(dataset), "measuring", show=progress) as advance:
        for pair in dataset:
            try:
                rows.append(measured(model, pair.load(size, side=side), matcher))
            except FileError as error:
                skipped.append({"name": pair.name, "reason": str(error)})
            advance()
    if not rows:
        raise InputError(f"dataset: none of the {len(dataset)} pairs could be read; the first: {skipped[0]['reason']}")
    figures = {
        "model": str(getattr(model, "name", type(model).__name__)),
        "dataset": dataset.name,
        "size": size,
        "side": side,
    }
    groups = {g: summary([r for r in rows if r["group"] == g]) for g in dict.fromkeys(r["group"] for r in rows)}
    failures = {"failures": model.failures} if hasattr(model, "failures") else {}
    return {**figures, **summary(rows), **failures, "groups": groups, "pairs": rows, "skipped": skipped}


def measured(model: Flows, sample: FlowPair, matcher: Matcher | None = None) -> Row:
    """The figures of one pair."""
    row: Row = {"name": sample.name, "group": sample.group}
    if sample.flow is not None or sample.points is not None:
        started = time.perf_counter()
        with torch.inference_mode():
            flow = _checked(model.flow(sample.a, sample.b), sample)
        row |= {"seconds": time.perf_counter() - started, **_flow_figures(flow, sample)}
    if matcher is not None:
        row |= _match_figures(matcher(sample.a, sample.b), sample)
    if len(row) == 2:
        raise InputError(f"dataset: of {sample.name} no flow, homography or points are known; give matching=True")
    return row


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of what the pairs have in common; "fl" over their pixels, areas under curves over their errors."""
    names = dict.fromkeys(n for row in rows for n, v in row.items() if isinstance(v, int | float) and n not in _RAW)
    figures: dict[str, Any] = {"n": len(rows)}
    for name in names:
        figures[name] = float(np.mean([row[name] for row in rows if name in row]))
    if "pixels" in rows[0]:
        figures["fl"] = sum(r["outliers"] for r in rows if "pixels" in r) / sum(
            r["pixels"] for r in rows if "pixels" in r
        )
    poses = [(r["rotation"], r["translation"], r["true rotation"]) for r in rows if "rotation" in r]
    return figures | (_pose_figures(np.array(poses)) if poses else {})


_RAW = ("pixels", "outliers", "rotation", "translation", "true rotation")
"""What a pair's row holds for the sums over pairs."""


# ---------------------------------------------------------------------------------------------------------------- flow


def _checked(flow: Any, sample: FlowPair) -> Floats:
    vectors = metrics.plain(flow).astype(np.float64)
    expected = (*sample.a.shape[-2:], 2)
    if vectors.shape != expected:
        raise ShapeError(f"model: its flow has shape {vectors.shape} for {sample.name}; expected {expected}")
    return vectors


def _flow_figures(flow: Floats, sample: FlowPair) -> Row:
    row: Row = {}
    if sample.points is not None and len(sample.points[0]):
        row |= {f"sparse@{p:g}": v for p, v in metrics.sparse_accuracy(flow, *sample.points).items()}
    if sample.flow is None:
        return row
    truth, known = sample.flow, sample.flow.valid
    pixels = flow.shape[0] * flow.shape[1] if known is None else int(known.sum())
    if pixels == 0:
        return row
    row["aepe"] = metrics.aepe(flow, truth)
    row |= {f"acc@{p:g}": v for p, v in metrics.accuracy(flow, truth).items()}
    row |= {"fl": metrics.fl(flow, truth), "pixels": pixels}
    row["outliers"] = round(row["fl"] * pixels)
    return row | _parts(flow, sample)


def _parts(flow: Floats, sample: FlowPair) -> Row:
    """The errors of what b shows and of what it does not, where that is known."""
    truth, hidden = sample.flow, sample.occluded
    if truth is None or hidden is None:
        return {}
    known = np.ones_like(hidden) if truth.valid is None else truth.valid
    parts = {"aepe visible": known & ~hidden, "aepe occluded": known & hidden}
    return {name: metrics.aepe(flow, truth, part) for name, part in parts.items() if part.any()}


# ------------------------------------------------------------------------------------------------------------- matches


def _match_figures(matches: Matches, sample: FlowPair) -> Row:
    row: Row = {"matches": len(matches), "matches of stage 1": int((matches.stage == 1).sum())}
    scale = min(1.0, max(sample.a.shape[-2:]) / SIZE)  # in a small image a pixel is much: chance agrees to it
    if sample.homography is not None:
        for name, stage in (("mma", None), ("stage 1 mma", 1)):
            shares = metrics.mma(matches, sample.homography, MMA_SHOWN, stage=stage)
            row |= {f"{name}@{p:g}": v for p, v in shares.items()}
        size = int(sample.a.shape[-2]), int(sample.a.shape[-1])
        model = robust.homography(matches.a, matches.b, 3.0 * scale)
        error = metrics.corner_error(model.matrix, sample.homography, size)
        row |= {"corners@5": float(error <= 5)}
    if sample.R is not None and sample.t is not None and sample.Ka is not None and sample.Kb is not None:
        pose = robust.pose(matches.a, matches.b, sample.Ka, sample.Kb, scale)
        row["rotation"], row["translation"] = metrics.pose_error(pose.R, pose.t, sample.R, sample.t)
        row["true rotation"] = metrics.rotation_angle(sample.R)
    return row


def _pose_figures(poses: Floats) -> dict[str, Any]:
    """Shares of poses right to 10°, in bins of the true rotation, and areas under the curve of the larger error."""
    rotation, translation, true = poses.T
    areas = metrics.auc(np.maximum(rotation, translation))
    return {
        "median rotation": float(np.median(rotation)),
        "median translation": float(np.median(translation)),
        "pose": metrics.pose_accuracy(rotation, translation, true),
        **{f"auc@{d:g}": v for d, v in areas.items()},
    }


# -------------------------------------------------------------------------------------------------------------- pieces


def _matcher(model: Flows, matching: bool | Matcher) -> Matcher | None:
    if not hasattr(model, "flow"):
        raise InputError(f"model: expected something with .flow(a, b), got {type(model).__name__}")
    if callable(matching):
        return matching
    if not matching:
        return None
    return lambda a, b: match(a, b, guide=model)
