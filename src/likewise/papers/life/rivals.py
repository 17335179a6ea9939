"""What flow is measured beside: no flow at all, DIS of OpenCV, and one homography from SIFT; and the paper's recipe.

Each has `.flow(a, b)` as the network has, takes tensors (3, h, w) in [0, 1] and gives vectors (h, w, 2).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from likewise.pixels.geometry import homography_flow
from likewise.pixels.matching import match
from likewise.pixels.training import Config

RECIPE = Config(
    network="large", refine=0, joint=100_000, height=368, width=496, pairs=6, scenes=6, iters=12, bend=1.0, light=0.0,
    night=0.0, sed=1.0, bit=1.0, cycle=1.0, contrast=0.0, cycle_mode="adaptive", alpha=3.0, beta=0.05, gamma=0.8,
    refine_lr=1.25e-4, weight_decay=1e-4, clip=1.0, schedule="linear", warmup=5_000, evaluate_every=1_000,
)  # fmt: skip
"""The paper's recipe for a GPU: RAFT, SED, BiT and the adaptive cycle with weight 1 each, no change of light."""

Grey: TypeAlias = NDArray[np.uint8]


class Zero:
    """Nothing moves."""

    name = "zero flow"

    def flow(self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Float[Tensor, "h w 2"]:
        """Vectors of 0."""
        return a.new_zeros(*a.shape[-2:], 2)


class DIS:
    """Dense inverse search (Kroeger et al.), OpenCV's, on grey; `equalized` spreads the histogram of each first.

    Equalised grey is OpenCV's equalizeHist over the whole image: the cheapest answer to another light.
    """

    def __init__(self, *, equalized: bool = False) -> None:
        self.equalized = equalized
        self.name = "DIS on equalised grey" if equalized else "DIS"

    def flow(self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Float[Tensor, "h w 2"]:
        """The flow a→b; where the sizes differ, b is brought to a's first, and the flow to b's."""
        cv: Any = cv2  # without its types, which lack some of what it has
        one, two = grey(a), grey(b)
        same = two if two.shape == one.shape else cv.resize(two, one.shape[::-1], interpolation=cv.INTER_AREA)
        if self.equalized:
            one, same = cv.equalizeHist(one), cv.equalizeHist(same)
        search = cv.DISOpticalFlow_create(cv.DISOPTICAL_FLOW_PRESET_MEDIUM)
        return _restored(search.calc(one, same, None), two.shape[:2], a)


def _restored(found: NDArray[np.float32], b: tuple[int, ...], like: Tensor) -> Float[Tensor, "h w 2"]:
    """The flow to an image of size b, found to one of a's size: (p + f + ½) s − ½ − p."""
    h, w = found.shape[:2]
    y, x = np.mgrid[:h, :w].astype(np.float32)
    start = np.stack([x, y], axis=2)
    scale = np.array([b[1] / w, b[0] / h], dtype=np.float32)
    return torch.from_numpy((start + found + 0.5) * scale - 0.5 - start).to(like)


class SparseHomography:
    """One homography for the whole image, MAGSAC++ of OpenCV to 3 px: from SIFT, mutual nearest with Lowe's ratio, or
    from XFeat with LighterGlue.

    Where none is found nothing moves; `failures` counts such pairs.
    """

    def __init__(self, features: str = "sift") -> None:
        self.features, self.failures = features, 0
        self.name = "SIFT + MAGSAC homography" if features == "sift" else "XFeat + LighterGlue + homography"

    def flow(self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Float[Tensor, "h w 2"]:
        """H p − p, or 0 where no homography was found."""
        if self.features == "sift":
            points = matched(grey(a), grey(b))
        else:
            matches = match(a, b, features=self.features, matcher="lighterglue", guide="never")
            points = matches.a, matches.b
        H = cv2.findHomography(*points, cv2.USAC_MAGSAC, 3.0)[0] if len(points[0]) >= 4 else None
        if H is None:
            self.failures += 1
            return a.new_zeros(*a.shape[-2:], 2)
        return homography_flow(torch.from_numpy(H), *a.shape[-2:]).to(a)


def matched(
    one: Grey, two: Grey, *, ratio: float = 0.8, most: int = 8000
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points (n, 2) of SIFT that are each other's nearest, nearer than `ratio` times the second nearest."""
    cv: Any = cv2
    sift = cv.SIFT_create(nfeatures=most)
    (keys, features), (others, other_features) = sift.detectAndCompute(one, None), sift.detectAndCompute(two, None)
    if features is None or other_features is None or len(others) < 2:
        return np.empty((0, 2)), np.empty((0, 2))
    matcher = cv.BFMatcher(cv.NORM_L2)
    back = {m.queryIdx: m.trainIdx for m in matcher.match(other_features, features)}
    near = [
        first
        for first, second in matcher.knnMatch(features, other_features, k=2)
        if first.distance < ratio * second.distance and back[first.trainIdx] == first.queryIdx
    ]
    left, right = [keys[m.queryIdx].pt for m in near], [others[m.trainIdx].pt for m in near]
    return np.array(left).reshape(-1, 2), np.array(right).reshape(-1, 2)


def grey(picture: Float[Tensor, "3 h w"]) -> Grey:
    """Luma 0.299 R + 0.587 G + 0.114 B as uint8 (h, w)."""
    rgb = (picture.detach().cpu().permute(1, 2, 0).clamp(0, 1) * 255).round().byte().numpy()
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY))


def baselines() -> tuple[Any, ...]:
    """All of them, as the level's figures name them."""
    return Zero(), DIS(), DIS(equalized=True), SparseHomography(), SparseHomography("xfeat")
