"""Pairs of places: which are true, which unrelated, and the table of geometries, on folders of plain photos."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from likewise import media
from likewise.errors import FileError, InputError
from likewise.papers.life import places
from likewise.pixels.matching import Matches


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four collections of 14 places; in kudamm the query 2 n + 100 is the reference n."""
    image = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
    for name in places.COLLECTIONS:
        step = 10 if name == "kudamm" else 1
        for n in range(14):
            query = 2 * step * n + 100 if name == "kudamm" else n
            for file in (f"reference/{step * n:03d}.jpg", f"query/{query:03d}.jpg"):
                path = tmp_path / "places" / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                media.write_image(path, image if file != "query/013.jpg" else image[:12])
    rows = "\n".join(f"{2 * step * n + 100 + places.SHIFTED:03d},{step * n + (n == 1):03d}" for n in range(14))
    (tmp_path / "places/kudamm/truth.csv").write_text(f"query,reference\n{rows}\n999,000\n", encoding="utf-8")
    return tmp_path


def test_true_and_unrelated_pairs(data: Path) -> None:
    true, unrelated = places.places(data / "places", "nordland")
    assert [(a.stem, b.stem) for a, b in true] == [(f"{n:03d}",) * 2 for n in range(14)]
    assert sorted(unrelated) == ["campus-nordland", "nordland", "nordland-kudamm", "nordland-webcams"]
    assert len(unrelated["nordland"]) == 20, "4 + 3 + 2 + 1 pairs 10 or more apart, either way"
    assert all(abs(int(a.stem) - int(b.stem)) >= 10 for a, b in unrelated["nordland"])
    assert {a.parts[-3] + b.parts[-3] for a, b in unrelated["campus-nordland"]} == {"campusnordland"}
    assert places.places(data / "places", "campus")[1]["campus-nordland"] == unrelated["campus-nordland"]
    street, far = places.places(data / "places", "kudamm")
    assert [(a.stem, b.stem) for a, b in street[:3]] == [("000", "100"), ("010", "120"), ("020", "140")]
    assert all(abs(int(a.stem) - (int(b.stem) - 100) / 2) >= 59 for a, b in far["kudamm"])


def test_webcams_are_seen_through_known_homographies(data: Path) -> None:
    pairs = places.webcams_with_homographies(data / "places", 5)
    assert len(pairs) == 5
    assert [p.name for p in pairs] == [p.name for p in places.webcams_with_homographies(data / "places", 5)]
    assert len(places.webcams_with_homographies(data / "places", 99)) == 13, "one has photos of two sizes"
    one, two = pairs[0].load(), pairs[1].load()
    assert not np.allclose(one.homography, np.eye(3))
    assert not np.allclose(one.homography, two.homography)


def test_a_camera_is_still_in_another_light_and_not_once_it_moved(tmp_path: Path) -> None:
    day = cv2.GaussianBlur(np.random.default_rng(1).uniform(0, 255, (120, 160)).astype(np.float32), (0, 0), 2)
    day = (day - day.min()) / np.ptp(day)
    night = 0.4 * (1 - day) ** 2 + 0.1  # dark is bright and bright is dark: edges keep their directions
    turned = cv2.warpAffine(night, cv2.getRotationMatrix2D((80, 60), 6, 1), (160, 120), borderMode=cv2.BORDER_REFLECT)
    other = np.random.default_rng(2).uniform(0, 1, (120, 160))
    views = {
        "night": night,
        "moved": np.roll(night, 3, 1),
        "turned": turned,
        "other": other,
        "by one": np.roll(night, 1, 0),
    }
    media.write_image(tmp_path / "day.png", np.repeat((255 * day).astype(np.uint8)[..., None], 3, 2))
    still = {}
    for name, view in views.items():
        media.write_image(tmp_path / f"{name}.png", np.repeat((255 * view).astype(np.uint8)[..., None], 3, 2))
        still[name] = places.is_still(tmp_path / "day.png", tmp_path / f"{name}.png")
    assert still == {"night": True, "moved": False, "turned": False, "other": False, "by one": True}


def test_the_table_counts_true_pairs_and_false_alarms(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(places, "ACROSS", 6)
    calls = []

    def matcher(a: Path, b: Path) -> Matches:
        """Pairs of one place agree, but for one; so does one unrelated pair of campus; others are random."""
        calls.append((a, b))
        rng = np.random.default_rng(len(calls))
        same, false = a.stem == b.stem != "003" and a.parts[-3] == b.parts[-3] != "kudamm", (a, b) == lie
        p, q = rng.uniform(0, 400, (2, 90 if false else 40, 2))
        return Matches(p, p + 5 if same or false else q)

    lie = places.places(data / "places", "campus")[1]["campus"][0]
    options = SimpleNamespace(data=str(data), cells=str(tmp_path / "cells"))
    rows = {r["collection"]: r for r in places.geometry(options, matcher).rows}
    assert rows["campus"]["geometry"] == pytest.approx(13 / 14)
    assert rows["campus"]["false alarms"] == 1
    assert rows["nordland"]["false alarms"] == 0
    assert rows["campus"]["left out"] == pytest.approx(13 / 14), "what it gives itself chooses nothing"
    assert rows["nordland"]["left out"] == 0, "below the false alarm of campus lies nothing"
    assert rows["campus"]["baseline"] == 0, "nothing has more inliers than the false alarm"
    assert rows["kudamm"]["own far pairs with a geometry"] == 0
    assert rows["campus"]["unrelated"] == 20 + 3 * 6
    made = len(calls)
    again = places.geometry(options, matcher)
    assert len(calls) == made, "finished parts are kept"
    assert [dict(r) for r in again.rows] == list(rows.values())


def test_refusals(data: Path) -> None:
    with pytest.raises(InputError, match="name: expected campus"):
        places.places(data / "places", "oslo")
    with pytest.raises(InputError, match="n: expected"):
        places.webcams_with_homographies(data / "places", 0)
    with pytest.raises(FileError, match=r"no photo 000\.jpg"):
        places.places(data, "campus")
    for file in (data / "places/campus/query").iterdir():
        file.rename(file.with_name(f"9{file.name}"))
    with pytest.raises(FileError, match="of the same place"):
        places.places(data / "places", "campus")
