"""evaluate: models with known faults, every kind of truth, the baselines where they must be right."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise import media
from likewise.errors import InputError, ShapeError
from likewise.papers.life import layouts
from likewise.papers.life import rivals as baselines
from likewise.pixels import metrics
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.evaluation import evaluate
from likewise.types import Flow, Matches
from worlds import scenes


class Constant:
    """Every pixel goes by the same vector."""

    def __init__(self, x: float, y: float) -> None:
        self.vector, self.name = torch.tensor([x, y]), f"by {x:g}, {y:g}"

    def flow(self, a: Tensor, b: Tensor) -> Tensor:
        return self.vector.expand(*a.shape[-2:], 2)


def pair(name: str, vector: tuple[float, float], group: str = "", **more: Any) -> FlowPair:
    picture = scenes.texture(0)
    return FlowPair(picture, picture, name, group, flow=np.full((48, 64, 2), vector), **more)


# ---------------------------------------------------------------------------------------------------------------- flow


def test_figures_of_a_model_with_known_faults() -> None:
    dataset = FlowDataset((pair("x", (3, 0), "g"), pair("y", (0, 4), "h"), pair("z", (0, 2), "h")), "made up")
    result = evaluate(Constant(3, 0), dataset, size=None)
    assert (result["model"], result["dataset"], result["n"], result["size"]) == ("by 3, 0", "made up", 3, None)
    assert [row["aepe"] for row in result["pairs"]] == pytest.approx([0, 5, math.sqrt(13)])
    assert result["aepe"] == pytest.approx((0 + 5 + math.sqrt(13)) / 3)
    assert (result["acc@1"], result["acc@3"], result["acc@5"]) == pytest.approx((1 / 3, 1 / 3, 1.0))
    assert result["fl"] == pytest.approx(2 / 3)
    assert result["groups"]["g"]["aepe"] == 0
    assert result["groups"]["h"]["aepe"] == pytest.approx((5 + math.sqrt(13)) / 2)
    assert result["groups"]["h"]["n"] == 2
    assert result["skipped"] == []
    json.dumps(result, allow_nan=False)


def test_outliers_are_of_all_pixels_and_errors_of_all_pairs() -> None:
    """One pair knows all its pixels, the other a hundredth of them: Fl weighs pixels, AEPE weighs pairs."""
    few = np.zeros((48, 64), dtype=bool)
    few.flat[:30] = True
    vectors = np.full((48, 64, 2), (10.0, 0.0))
    one = pair("all", (0, 0))
    other = FlowPair(one.a, one.b, "few", flow=Flow(vectors, few))
    result = evaluate(Constant(0, 0), FlowDataset((one, other)), size=None)
    assert result["aepe"] == pytest.approx(5.0)
    assert result["fl"] == pytest.approx(30 / (48 * 64 + 30))


def test_flow_is_measured_at_the_size_that_is_asked_for() -> None:
    dataset = FlowDataset((pair("x", (4, 2)),))
    assert evaluate(Constant(2, 1), dataset, size=24)["aepe"] == pytest.approx(0, abs=1e-6)
    assert evaluate(Constant(2, 1), dataset, size=32, side="longest")["aepe"] == pytest.approx(0, abs=1e-6)
    assert evaluate(Constant(4, 2), dataset)["aepe"] == pytest.approx(0, abs=1e-6)


def test_what_b_does_not_show_is_told_apart(tmp_path: Path) -> None:
    pairs = layouts.read(scenes.sintel(tmp_path))
    dataset = FlowDataset(tuple(p for p in pairs if p.group == "clean"), "sintel")

    class Half:
        def flow(self, a: Tensor, b: Tensor) -> NDArray[np.float32]:
            vectors = np.full((48, 64, 2), (2.0, 0.0), dtype=np.float32)
            vectors[:, -2:] = (2.0, 8.0)
            return vectors

    result = evaluate(Half(), dataset)
    assert result["model"] == "Half"
    assert result["aepe visible"] == 0
    assert result["aepe occluded"] == 8
    assert result["aepe"] == pytest.approx(8 * 2 / 64)


def test_points_are_truth_too(tmp_path: Path) -> None:
    root = scenes.robotcar(tmp_path)
    result = evaluate(Constant(2, 0), layouts.read(root))
    assert {k: result[k] for k in ("sparse@1", "sparse@3", "sparse@5")} == {"sparse@1": 1, "sparse@3": 1, "sparse@5": 1}
    assert "aepe" not in result
    off = evaluate(Constant(2, 4), layouts.read(root))
    assert (off["sparse@3"], off["sparse@5"]) == (0, 1)
    assert set(off["groups"]) == {"dusk", "night"}


def test_pairs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    root = scenes.kitti(tmp_path)
    (root / "training" / "image_2" / "000001_11.png").write_bytes(b"broken")
    result = evaluate(Constant(3, -2), layouts.read(root))
    assert result["n"] == 1
    assert result["aepe"] == pytest.approx(0, abs=1e-6)
    (skipped,) = result["skipped"]
    assert skipped["name"] == "kitti2015 000001"
    assert "000001_11.png: not a picture" in skipped["reason"]
    (root / "training" / "image_2" / "000000_11.png").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"none of the 2 pairs could be read; the first: .*000000_11"):
        evaluate(Constant(3, -2), layouts.read(root))


def test_models_and_data_that_cannot_be_measured() -> None:
    dataset = FlowDataset((pair("x", (4, 2)),))

    class Small:
        def flow(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.zeros(2, 2, 2)

    with pytest.raises(ShapeError, match=r"model: its flow has shape \(2, 2, 2\) for x; expected \(48, 64, 2\)"):
        evaluate(Small(), dataset)
    with pytest.raises(InputError, match=r"model: expected something with \.flow\(a, b\), got str"):
        evaluate("raft", dataset)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dataset: expected a FlowDataset, got list"):
        evaluate(Constant(0, 0), [1])  # type: ignore[arg-type]
    unknown = FlowDataset((FlowPair(scenes.texture(0), scenes.texture(0), "x", F=np.eye(3)),))
    with pytest.raises(InputError, match="of x no flow, homography or points are known; give matching=True"):
        evaluate(Constant(0, 0), unknown)


# ------------------------------------------------------------------------------------------------------------- matches


def homography_matches(H: NDArray[np.float64], wrong: int, n: int = 40) -> Matches:
    """Exact matches, the last `wrong` of which are off by 100 px and of stage 2."""
    a = np.random.default_rng(0).uniform([0, 0], [63, 47], (n, 2))
    b = metrics.project(H, a)
    b[n - wrong :] += 100
    return Matches(a, b, np.where(np.arange(n) < n - wrong, 1, 2))


def test_matches_against_a_homography() -> None:
    H = np.array([[1.02, 0.01, 3.0], [-0.01, 0.98, 2.0], [1e-4, 0, 1.0]])
    dataset = FlowDataset((FlowPair(scenes.texture(0), scenes.texture(0), "x", homography=H),))
    result = evaluate(Constant(0, 0), dataset, matching=lambda a, b: homography_matches(H, 10))
    assert (result["matches"], result["matches of stage 1"]) == (40, 30)
    assert (result["mma@3"], result["stage 1 mma@3"], result["corners@5"]) == (0.75, 1.0, 1.0)
    nothing = evaluate(Constant(0, 0), dataset, matching=lambda a, b: Matches([], []))
    assert (nothing["matches"], nothing["mma@10"], nothing["corners@5"]) == (0, 0, 0)
    json.dumps(nothing, allow_nan=False)


def test_matches_against_cameras(tmp_path: Path) -> None:
    world = scenes.world(points=300)
    dataset = layouts.read(scenes.colmap(tmp_path, world))
    known = {p.name: p.points() for p in dataset if callable(p.points)}
    names = iter([p.name for p in dataset])
    result = evaluate(Constant(0, 0), dataset, size=None, matching=lambda a, b: Matches(*known[next(names)]))
    assert result["median rotation"] < 0.1
    assert result["median translation"] < 1
    assert "rotation" not in result
    assert result["pose"]["all"] == {"rotation": 1.0, "translation": 1.0, "n": len(dataset)}
    assert result["auc@5"] > 0.9
    assert "sparse@3" in result
    lost = evaluate(Constant(0, 0), dataset, size=None, matching=lambda a, b: Matches([], []))
    assert lost["median rotation"] == math.inf
    assert lost["pose"]["all"]["rotation"] == lost["auc@20"] == 0


def test_matching_is_guided_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from likewise.pixels import evaluation

    seen = []

    def match(a: Tensor, b: Tensor, *, guide: object) -> Matches:
        seen.append(guide)
        return Matches([], [])

    monkeypatch.setattr(evaluation, "match", match)
    model = Constant(0, 0)
    evaluate(model, FlowDataset((pair("x", (4, 2)),)), matching=True)
    assert seen == [model]


# ----------------------------------------------------------------------------------------------------------- baselines


@pytest.fixture(scope="module")
def shifted() -> FlowPair:
    """An image, and the same moved by (5, −3)."""
    picture = scenes.texture(7, 128, 160)
    return FlowPair(
        picture[8:-8, 8:-8], picture[11:-5, 3:-13], "shifted", homography=np.array([[1, 0, 5.0], [0, 1, -3], [0, 0, 1]])
    )


def test_the_baselines_find_a_shift(shifted: FlowPair) -> None:
    dataset = FlowDataset((shifted,))
    errors = {m.name: evaluate(m, dataset)["aepe"] for m in baselines.baselines()}
    assert errors["zero flow"] == pytest.approx(math.hypot(5, 3), abs=1e-5)
    assert errors["DIS"] < 0.5
    assert errors["DIS on equalised grey"] < 0.5
    assert errors["SIFT + MAGSAC homography"] < 0.3


def test_equalised_grey_survives_another_light(shifted: FlowPair) -> None:
    night = np.rint(255 * (np.asarray(shifted.b) / 255.0) ** 3 * 0.5).astype(np.uint8)
    dataset = FlowDataset((FlowPair(shifted.a, night, "night", homography=shifted.homography),))
    plain, equalised = (evaluate(baselines.DIS(equalized=e), dataset)["aepe"] for e in (False, True))
    assert equalised < 0.6 * plain


def test_a_pair_without_features_moves_nothing_and_is_counted() -> None:
    blank = np.full((64, 64, 3), 90, dtype=np.uint8)
    dataset = FlowDataset((FlowPair(blank, blank, "blank", homography=np.eye(3)),))
    model = baselines.SparseHomography()
    result = evaluate(model, dataset)
    assert (result["failures"], result["aepe"]) == (1, 0)


def test_sizes_may_differ(shifted: FlowPair) -> None:
    """b twice as large: DIS looks at it at a's size and gives the flow to b's."""
    b = np.asarray(shifted.b).repeat(2, axis=0).repeat(2, axis=1)
    H = np.array([[2, 0, 10.5], [0, 2, -5.5], [0, 0, 1]])  # 2 (p + ½ + shift) − ½
    dataset = FlowDataset((FlowPair(shifted.a, b, "large", homography=H),))
    assert evaluate(baselines.DIS(), dataset, size=None)["aepe"] < 1
    assert evaluate(baselines.SparseHomography(), dataset, size=None)["aepe"] < 1


def test_a_flow_to_a_picture_of_another_size_keeps_the_half_pixel() -> None:
    """Where nothing moves, the centre of a's first pixel is the middle of b's first 2 × 3."""
    flow = baselines._restored(np.zeros((4, 5, 2), np.float32), (8, 15), torch.zeros(3, 4, 5))
    assert flow[0, 0].tolist() == [1.0, 0.5]
    assert flow[3, 4].tolist() == [13.0 - 4, 6.5 - 3]


@pytest.mark.slow
def test_oxford_beside_the_baselines(data: Path) -> None:
    """Leuven under generated homographies is easy for SIFT, hard for nothing at all."""
    dataset = layouts.hpatches(data / "oxford", part="illumination", generated=True)
    zero, _, equalised, sift, xfeat = (evaluate(m, dataset) for m in baselines.baselines())
    assert zero["aepe"] > 20
    assert equalised["aepe"] < 2
    assert sift["aepe"] < 0.5
    assert sift["acc@1"] > 0.95
    assert xfeat["aepe"] < 1


def test_dis_on_rubber_whale(data: Path) -> None:
    result = evaluate(baselines.DIS(), layouts.read(data / "middlebury"), size=None)
    assert result["aepe"] < 0.3
    assert result["acc@1"] > 0.93
    assert media.is_image(data / "middlebury" / "RubberWhale" / "frame10.png")
