"""Copies are told by their light: the correlation of two photos, one warped to the other, against naive loops."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from likewise import samples
from likewise.search import duplicates
from likewise.search.duplicates import DETAIL, EQUAL, FLAT_GREY, WINDOW, correlation, is_copy
from likewise.search.verify import PLAIN, Evidence, Verifier
from likewise.types import Matches


def evidence(a: np.ndarray, b: np.ndarray, H: Any = None) -> Evidence:
    """As if H took a to b, by matches over all of a; by default where it is."""
    matrix = np.eye(3) if H is None else np.asarray(H, np.float64)
    h, w = a.shape[:2]
    points = np.stack(np.meshgrid(np.arange(0, w, 40), np.arange(0, h, 40)), -1).reshape(-1, 2).astype(np.float32)
    there = cv2.perspectiveTransform(points[None].astype(np.float64), matrix)[0].astype(np.float32)
    matches = Matches(points, there, np.full(len(points), 2, np.int8), np.ones(len(points), np.float32))
    sizes = (a.shape[:2], b.shape[:2])
    return Evidence(matches, "homography", matrix, np.ones(len(points), bool), sizes, sources=(a, b))


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return cv2.resize(samples.photograph("cat"), (640, 426))


def other() -> np.ndarray:
    return cv2.resize(samples.photograph("coffee"), (640, 426))


def test_the_median_is_that_of_naive_windows(photo: np.ndarray) -> None:
    a, b = photo, (photo * 0.5 + other() * 0.5).astype(np.uint8)
    size = (DETAIL, round(426 * DETAIL / 640))
    x, y = (cv2.resize(cv2.cvtColor(p, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA) * 1.0 for p in (a, b))
    half, values = WINDOW // 2, []
    for r in range(half, size[1] - half):
        for c in range(half, size[0] - half):
            u, v = (z[r - half : r + half + 1, c - half : c + half + 1].ravel() for z in (x, y))
            if max(u.var(), v.var()) > FLAT_GREY:
                values.append(np.corrcoef(u, v)[0, 1] if min(u.var(), v.var()) > 1e-9 else 0.0)
    assert correlation(evidence(a, b)) == pytest.approx(np.median(values), abs=1e-6)


def test_light_and_captions_do_not_count_but_other_things_do(photo: np.ndarray) -> None:
    assert correlation(evidence(photo, photo)) == pytest.approx(1)
    relit = (255 * (photo / 255.0) ** 0.6).astype(np.uint8)
    assert correlation(evidence(photo, relit)) > 0.98
    captioned, later = photo.copy(), photo.copy()
    captioned[300:] = 255
    later[:260] = other()[:260]  # the frame of a webcam, most of what it shows is another
    assert is_copy(evidence(photo, captioned))
    assert correlation(evidence(photo, later)) < 0.8
    assert not is_copy(evidence(photo, later))


def test_parts_are_compared_where_both_show_them(photo: np.ndarray) -> None:
    crop = photo[60:366, 90:550]
    shift = np.array([[1.0, 0, -90], [0, 1, -60], [0, 0, 1]])
    assert correlation(evidence(photo, crop, shift)) > EQUAL
    assert is_copy(evidence(photo, crop, shift))
    assert correlation(evidence(photo, crop, np.diag([460 / 640, 306 / 426, 1]))) < 0.7, "not by this plane"
    assert correlation(evidence(photo, np.full_like(photo, 99))) == pytest.approx(0)
    flat = np.full_like(photo, 7)
    assert correlation(evidence(flat, flat)) == 0, "nothing is seen"


def test_a_plane_of_features_alike_needs_no_network(photo: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates.Verifier, "weigh", lambda *a: pytest.fail("matched"))
    smaller = cv2.resize(photo, (400, 266), interpolation=cv2.INTER_AREA)
    verifier, there = Verifier(photo), Verifier(smaller).look(PLAIN)
    seen = verifier.glance(smaller, there, PLAIN)
    assert seen is not None
    assert (seen.kind, seen.copy, seen.relation) == ("homography", True, "same frame")
    far = verifier.glance(other(), Verifier(other()).look(PLAIN), PLAIN)
    assert far is None or not is_copy(far)
