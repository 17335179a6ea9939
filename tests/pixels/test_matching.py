"""Guided matching: hand cases, a naive loop over features, a rendered place, files, and nothing to match."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pixels.test_features import texture

from likewise import samples
from likewise.errors import FileError, InputError
from likewise.pixels import matching as nearest
from likewise.pixels import metrics
from likewise.pixels.features import Features, detect
from likewise.pixels.geometry import homography_flow
from likewise.pixels.matching import Matches, match
from likewise.types import Flow, Image

BLANK = torch.zeros(3, 100, 120)


def raw(a, b, *, features="sift", ratio=None):
    """Mutual nearest features, without a flow."""
    return match(a, b, features=features, matcher="mutual", guide="never", ratio=ratio)


class Moved:
    """A model that knows the homography: the flow both ways, on the grid of each image."""

    def __init__(self, H: np.ndarray) -> None:
        self.H = torch.tensor(H, dtype=torch.float64)

    def both(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return homography_flow(self.H, *a.shape[-2:]), homography_flow(torch.linalg.inv(self.H), *b.shape[-2:])


STILL = Moved(np.eye(3))


# -------------------------------------------------------------------------------------------------- an oracle in loops


def oracle(
    pa: np.ndarray, da: np.ndarray, pb: np.ndarray, db: np.ndarray, *, radius: float, search: str, ratio: float | None
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Both stages for a flow of 0, feature by feature; of equal distances the first wins."""

    def closest(row: np.ndarray, rows: np.ndarray, among: list[int]) -> int:
        return min(among, key=lambda k: (((row - rows[k]) ** 2).sum(), k)) if among else -1

    def passes(row: np.ndarray, rows: np.ndarray, among: list[int]) -> bool:
        d = sorted(((row - rows[k]) ** 2).sum() for k in among)
        return ratio is None or len(d) < 2 or d[0] < ratio**2 * d[1]

    near = np.linalg.norm(pa[:, None] - pb[None], axis=2) <= radius
    there = [closest(da[i], db, np.flatnonzero(near[i]).tolist()) for i in range(len(da))]
    back = [closest(db[j], da, np.flatnonzero(near[:, j]).tolist()) for j in range(len(db))]
    first = [(i, j) for i, j in enumerate(there) if j >= 0 and back[j] == i]
    free_a = [i for i in range(len(da)) if i not in {p[0] for p in first}]
    free_b = [j for j in range(len(db)) if j not in {p[1] for p in first}]
    pool_a, pool_b = (free_a, free_b) if search == "left" else (list(range(len(da))), list(range(len(db))))
    second = []
    for i in free_a:
        j = closest(da[i], db, pool_b)
        if j in free_b and closest(db[j], da, pool_a) == i and passes(da[i], db, pool_b) and passes(db[j], da, pool_a):
            second.append((i, j))
    return first, second


def pairs_of(result: Matches, pa: np.ndarray, pb: np.ndarray, stage: int) -> list[tuple[int, int]]:
    some = result.of_stage(stage)
    at = [
        [int(np.flatnonzero((points == q).all(axis=1))[0]) for q in side]
        for points, side in ((pa, some.a), (pb, some.b))
    ]
    return sorted(zip(*at, strict=True))


@st.composite
def places_and_rows(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    """Features at distinct places with descriptors of small whole numbers, so that ties are many and sums exact."""
    rng = np.random.default_rng(draw(st.integers(0, 100_000)))
    made: list[np.ndarray] = []
    for _ in range(2):
        n = draw(st.integers(1, 25))
        places = rng.permutation(120 * 100)[:n]
        made += [np.column_stack([places % 120, places // 120]).astype(float), rng.integers(0, 3, (n, 3)).astype(float)]
    return tuple(made)


@settings(max_examples=30)
@given(places_and_rows(), st.sampled_from([3.0, 15.0, 40.0, 500.0]), st.sampled_from(["all", "left"]),
       st.sampled_from([None, 0.8]))  # fmt: skip
def test_both_stages_as_a_loop_finds_them(world, radius, search, ratio) -> None:
    pa, da, pb, db = world
    result = match(BLANK, BLANK, features=world, guide=STILL, radius=radius, search=search, ratio=ratio)
    first, second = oracle(pa, da, pb, db, radius=radius, search=search, ratio=ratio)
    assert pairs_of(result, pa, pb, 1) == first
    assert pairs_of(result, pa, pb, 2) == sorted(second)


@settings(max_examples=30)
@given(places_and_rows(), st.sampled_from(["all", "left"]))
def test_matches_are_one_to_one_and_the_same_from_b_to_a(world, search) -> None:
    there = match(BLANK, BLANK, features=world, guide=STILL, radius=20, search=search, ratio=0.9)
    back = match(BLANK, BLANK, features=world[2:] + world[:2], guide=STILL, radius=20, search=search, ratio=0.9)
    for points in (there.a, there.b):
        assert len(np.unique(points, axis=0)) == len(points)
    for stage in (1, 2):
        one, two = there.of_stage(stage), back.of_stage(stage)
        assert sorted(map(tuple, np.hstack([one.a, one.b]))) == sorted(map(tuple, np.hstack([two.b, two.a])))


@settings(max_examples=30)
@given(places_and_rows(), st.sampled_from([None, 0.7]))
def test_raw_is_stage_two_with_nothing_near(world, ratio) -> None:
    far = (np.full((100, 120, 2), 1e4), np.full((100, 120, 2), 1e4))
    one, two = raw(BLANK, BLANK, features=world, ratio=ratio), match(
        BLANK, BLANK, features=world, guide=far, ratio=ratio
    )  # fmt: skip
    assert np.array_equal(one.a, two.a)
    assert np.array_equal(one.b, two.b)
    assert (one.stage == 2).all()


@pytest.mark.parametrize("radius", [1.0, 8.0, 60.0, 300.0])
def test_near_features_alike_by_lists_and_by_loop(radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(0, 4, (150, 6)).astype(np.float32) for _ in range(2))
    places, points = rng.uniform(0, 200, (150, 2)), rng.uniform(0, 200, (150, 2))
    places[7] = np.nan
    expected = np.full(150, -1)
    for i in range(150):
        among = np.flatnonzero(np.linalg.norm(points - places[i], axis=1) <= radius)
        if len(among):
            expected[i] = among[((x[i] - y[among]) ** 2).sum(axis=1).argmin()]
    monkeypatch.setattr(nearest, "PAIRS", 64)
    assert np.array_equal(nearest.guided(x, places, y, points, radius), expected)


@pytest.mark.parametrize("detector", [cv2.SIFT_create(), cv2.ORB_create()])
def test_mutual_nearest_agrees_with_opencv(detector: object) -> None:
    """Binary descriptors go by Hamming's distance; where two are equally near, OpenCV may take another."""
    one, two = (detect(texture(1, (120, 160), blur=b), detector) for b in (2.5, 2.6))
    i, j = nearest.mutual(*nearest.comparable(one, two))
    norm = cv2.NORM_HAMMING if one.binary else cv2.NORM_L2
    peer = {
        (m.queryIdx, m.trainIdx) for m in cv2.BFMatcher(norm, crossCheck=True).match(one.descriptors, two.descriptors)
    }
    assert len(i) > 20
    assert len(peer & set(zip(i.tolist(), j.tolist(), strict=True))) >= (0.8 if one.binary else 1.0) * len(i)


def test_bits_by_hand() -> None:
    one, two = Features([[0, 0]], np.array([[0b1010]], np.uint8)), Features([[0, 0]], np.array([[0b0110]], np.uint8))
    x, y = nearest.comparable(one, two)
    assert ((x - y) ** 2).sum() == 4 * 2
    assert nearest.similarity(x, y)[0] == pytest.approx(1 - 2 * 2 / 8)


# --------------------------------------------------------------------------------------------------------- hand cases


def hand(**options: object) -> Matches:
    """Two features of a at x = 10 and 50; in b their look-alikes are swapped, the places are not."""
    pa, pb = [[10.0, 10.0], [50.0, 10.0]], [[11.0, 10.0], [51.0, 10.0]]
    da, db = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    return match(BLANK, BLANK, features=(pa, da, pb, db), guide=STILL, **options)  # type: ignore[arg-type]


def test_the_flow_outweighs_the_look_inside_the_radius() -> None:
    near = hand(radius=5)
    assert near.stage.tolist() == [1, 1]
    assert near.b[:, 0].tolist() == [11.0, 51.0]
    assert near.score.tolist() == [0, 0]
    far = hand(radius=0.5)
    assert far.stage.tolist() == [2, 2]
    assert far.b[:, 0].tolist() == [51.0, 11.0]
    assert far.score.tolist() == [1, 1]
    assert hand(radius=1.0).stage.tolist() == [1, 1]  # the radius itself is inside


def test_both_readings_of_stage_two() -> None:
    """The left-over feature of a looks most like one that is taken: "all" drops it, "left" takes the next."""
    pa, da = [[10.0, 10.0], [90.0, 50.0]], [[4.0, 0.0], [4.0, 1.0]]
    pb, db = [[10.0, 10.0], [20.0, 90.0]], [[4.0, 1.0], [0.0, 0.0]]
    strict = match(BLANK, BLANK, features=(pa, da, pb, db), guide=STILL, search="all")
    loose = match(BLANK, BLANK, features=(pa, da, pb, db), guide=STILL, search="left")
    assert strict.stage.tolist() == [1]
    assert loose.stage.tolist() == [1, 2]
    assert loose.b[1].tolist() == [20.0, 90.0]


def test_the_radius_grows_where_the_flow_was_found_on_a_smaller_picture() -> None:
    pa, pb, rows = [[40.0, 40.0]], [[49.0, 40.0]], [[1.0]]
    given: dict = {"features": (pa, rows, pb, rows), "radius": 5.0}
    assert match(BLANK, BLANK, guide=STILL, **given).stage.tolist() == [2]
    assert match(BLANK, BLANK, guide=STILL, flow_size=60, **given).stage.tolist() == [1]  # 5 px at half the size
    worker = Moved(np.eye(3))
    worker.work = 60  # type: ignore[attr-defined]
    assert match(BLANK, BLANK, guide=worker, **given).stage.tolist() == [1]
    assert match(BLANK, BLANK, guide=worker, flow_size=120, **given).stage.tolist() == [2]
    coarse = (np.zeros((50, 60, 2)), np.zeros((50, 60, 2)))
    assert match(BLANK, BLANK, guide=coarse, **given).stage.tolist() == [1]


def test_flows_on_coarser_grids_are_read_by_the_half_pixel_rule() -> None:
    """b is a at 3/2 of its size; on grids of 20 × 24 and 30 × 36 the flow is (p + ½) 3/2 − ½ − p."""
    y, x = np.mgrid[:20, :24].astype(float)
    ab = np.stack([(x + 0.5) * 1.5 - 0.5 - x, (y + 0.5) * 1.5 - 0.5 - y], axis=2)
    y, x = np.mgrid[:30, :36].astype(float)
    ba = np.stack([(x + 0.5) / 1.5 - 0.5 - x, (y + 0.5) / 1.5 - 0.5 - y], axis=2)
    point = np.array([[30.0, 62.0]])
    there = (point + 0.5) * 1.5 - 0.5
    rows = [[1.0]]
    result = match(
        torch.zeros(3, 100, 120), torch.zeros(3, 150, 180), features=(point, rows, there, rows),
        guide=(ab, ba), radius=0.01,
    )  # fmt: skip
    assert result.stage.tolist() == [1]


def test_where_the_flow_is_not_known_stage_one_is_silent() -> None:
    known = np.ones((100, 120), dtype=bool)
    known[:, 45:] = False
    still = Flow(np.zeros((100, 120, 2)), known)
    points = [[10.0, 10.0], [50.0, 10.0]]
    rows = [[1.0, 0.0], [0.0, 1.0]]
    result = match(BLANK, BLANK, features=(points, rows, points, rows), guide=(still, still))
    assert result.stage.tolist() == [1, 2]
    broken = np.zeros((100, 120, 2))
    broken[:, 45:] = np.nan
    assert match(BLANK, BLANK, features=(points, rows, points, rows), guide=(broken, broken)).stage.tolist() == [1, 2]


# -------------------------------------------------------------------------------------------------------------- worlds


@pytest.fixture(scope="module")
def turned() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A texture, the same through a homography, and the homography."""
    shown = texture(5, (150, 200), blur=1.5)
    H = np.array([[0.9, -0.25, 30.0], [0.2, 0.8, 5.0], [2e-4, -1e-4, 1.0]])
    return shown, cv2.warpPerspective(shown, H, (200, 150)), H


@pytest.mark.parametrize("features", ["sift", cv2.ORB_create(4096)])
def test_guided_matches_are_more_and_better_than_raw_ones(turned, features: object) -> None:
    a, b, H = turned
    plain, guided = raw(a, b, features=features), match(a, b, features=features, guide=Moved(H))
    assert len(guided) >= len(plain)
    right = [int((metrics.match_errors(m, H) <= 3).sum()) for m in (plain, guided)]
    assert right[1] > right[0]
    assert metrics.mma(guided, H, stage=1)[5] > 0.9
    assert metrics.corner_error(guided.homography(), H, a.shape) < 1.0


def test_a_model_with_flow_alone_will_do(turned) -> None:
    a, b, H = turned

    class OneWay:
        def flow(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            there, back = Moved(H).both(x, y)
            return there if np.array_equal(x[0].numpy(), (a / np.float32(255)).astype(np.float32)) else back

    one, two = (match(a, b, features="sift", guide=guide) for guide in (OneWay(), Moved(H)))
    assert np.array_equal(one.b, two.b)


def test_what_may_guide_and_where_it_is_sure() -> None:
    """A confidence decides where the flow counts, else its round trip does."""
    points, rows = np.array([[10.0, 10.0], [50.0, 10.0]]), np.eye(2)
    given: dict = {"features": (points, rows, points, rows)}
    still = np.zeros((100, 120, 2))

    class Aligned:
        ab = ba = still

        def confidences(self) -> tuple[np.ndarray, np.ndarray]:
            sure = np.full((100, 120), 0.9)
            sure[:, 45:] = 0.4
            return sure, np.ones((100, 120))

    class Aligner:
        def align(self, a: torch.Tensor, b: torch.Tensor) -> Aligned:
            return Aligned()

    class Comparison:
        flow = back = Flow(still)

    assert match(BLANK, BLANK, guide=Aligner(), **given).stage.tolist() == [1, 2]
    assert match(BLANK, BLANK, guide=Comparison(), **given).stage.tolist() == [1, 1]
    astray = still.copy()
    astray[:, 45:, 0] = 3.5  # 3.5 px off, and the way back is 0: its round trip misses by more than 3
    assert match(BLANK, BLANK, guide=(astray, still), **given).stage.tolist() == [1, 2]
    assert match(BLANK, BLANK, guide=(astray, still), flow_size=60, **given).stage.tolist() == [1, 1]
    for never in (None, "never"):
        assert match(BLANK, BLANK, guide=never, **given).stage.tolist() == [2, 2]


def test_the_default_flow_guides_what_lightglue_cannot_match(turned, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, H = turned
    monkeypatch.setattr("likewise.pixels.default", lambda: Moved(H))
    assert (match(a, b, features="sift").stage == 1).sum() > 50
    assert (match(a, b, features="sift", guide="never").stage == 2).all()


# ----------------------------------------------------------------------------------------------------------- LightGlue


@pytest.fixture(scope="module")
def photo() -> Image:
    return Image(cv2.resize(samples.photograph("temple"), (480, 320), interpolation=cv2.INTER_AREA))


def refuse() -> None:
    raise AssertionError("no flow is needed")


def view(photo: Image, H: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return cv2.warpPerspective(photo.pixels, H, size[::-1], flags=cv2.INTER_AREA)


def test_lighterglue_matches_a_bent_photo_without_a_flow(photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.default", refuse)
    h, w = photo.size
    H = np.array([[0.9, -0.1, 30.0], [0.12, 0.95, -5.0], [1e-4, -5e-5, 1.0]])
    b = view(photo, H, (h, w))
    result = match(photo, b)
    assert result.sizes == ((h, w), (h, w))
    assert (result.stage == 2).all()
    assert ((result.score > 0.1) & (result.score <= 1)).all()
    assert len(result) > 100
    assert metrics.mma(result, H)[3] > 0.9
    assert np.array_equal(result.b, match(photo, b, matcher="lighterglue").b)
    assert np.array_equal(result.b, match(photo, b, matcher="lightglue").b)
    nearest_ones = match(photo, b, matcher="mutual", guide="never")
    assert metrics.mma(nearest_ones, H)[3] < metrics.mma(result, H)[3]
    ratio = match(photo, b, ratio=0.9, guide="never", most=600)
    assert 0 < len(ratio) < len(match(photo, b, matcher="mutual", guide="never", most=600))
    assert np.array_equal(ratio.b, match(photo, b, matcher="ratio", ratio=0.9, guide="never", most=600).b)


def test_lighterglue_is_symmetric(photo: Image) -> None:
    b = view(photo, np.array([[1.1, 0.05, -20.0], [-0.03, 1.05, 4.0], [0, 0, 1.0]]), photo.size)
    there, back = (match(*sides, guide="never", most=500) for sides in ((photo, b), (b, photo)))
    one = set(map(tuple, np.hstack([there.a, there.b])))
    two = set(map(tuple, np.hstack([back.b, back.a])))
    assert len(one & two) >= 0.98 * max(len(one), len(two)) > 50


def test_lightglue_takes_features_of_every_form_that_have_a_name(photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.default", refuse)
    b = view(photo, np.array([[1.0, 0, 7], [0, 1, -4], [0, 0, 1]]), photo.size)
    fa, fb = (detect(side, "xfeat", 300) for side in (photo, b))
    named = match(photo, b, most=300)
    assert np.array_equal(match(photo, b, features=(fa, fb)).b, named.b)
    plain = [{"keypoints": f.points[None], "descriptors": f.descriptors[None]} for f in (fa, fb)]
    assert np.array_equal(match(photo, b, features=plain, matcher="lighterglue").b, named.b)
    with pytest.raises(InputError, match="lightglue cannot match features without a name"):
        match(photo, b, features=plain, matcher="lightglue")


def test_stage_two_is_lightglues_where_it_matches(photo: Image) -> None:
    """A flow that is known in the left half of a alone: stage 1 is there, and LighterGlue finds the rest."""
    (h, w), H = photo.size, np.array([[1.0, 0, 6.0], [0, 1, 3.0], [0, 0, 1.0]])
    b = view(photo, H, (h, w))
    there, back = Moved(H).both(torch.zeros(3, h, w), torch.zeros(3, h, w))
    there[:, w // 2 :] = torch.nan
    for search in ("all", "left"):
        result = match(photo, b, guide=(there, back), search=search)  # type: ignore[arg-type]
        near, far = result.of_stage(1), result.of_stage(2)
        assert min(len(near), len(far)) > 50
        assert near.a[:, 0].max() < w / 2 + 1
        assert metrics.mma(far.take(far.a[:, 0] > w / 2), H)[3] > 0.9
        for points in (result.a, result.b):
            assert len(np.unique(points, axis=0)) == len(points)


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_turned_photo_is_found_again(photo: Image, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.default", refuse)
    (h, w), b = photo.size, np.ascontiguousarray(np.rot90(photo.pixels, turn))
    H = {1: [[0, 1, 0], [-1, 0, w - 1]], 2: [[-1, 0, w - 1], [0, -1, h - 1]], 3: [[0, -1, h - 1], [1, 0, 0]]}[turn]
    truth = np.array([*H, [0, 0, 1]], dtype=float)
    result = match(photo, b)
    assert result.geometry().n > 200
    assert metrics.mma(result, truth)[1] > 0.9
    assert result.sizes == ((h, w), b.shape[:2])
    # Pixel centres are mapped exactly: the mean error is far below a pixel in x and in y.
    mapped = np.column_stack([result.a, np.ones(len(result))]) @ truth.T
    off = (result.b - mapped[:, :2])[np.linalg.norm(result.b - mapped[:, :2], axis=1) < 2]
    assert np.abs(off.mean(axis=0)).max() < 0.2
    if turn == 1:
        assert match(photo, b, matcher="lighterglue", guide="never").geometry().n < 50


@pytest.mark.parametrize("swapped", [False, True])
def test_a_photo_of_another_scale_is_found_again(photo: Image, swapped: bool) -> None:
    """A sixth of a's area, enlarged to its size: what is seen lies at three times the scale."""
    h, w = photo.size
    H = np.array([[3.2, 0, -0.9 * w], [0, 3.2, -0.7 * h], [0, 0, 1]])
    b = view(photo, H, (h, w))
    result = match(b, photo, guide="never") if swapped else match(photo, b, guide="never")
    errors = metrics.match_errors(result, np.linalg.inv(H) if swapped else H)
    assert (errors < (2 if swapped else 6)).sum() > 60
    assert result.geometry().n > 40


def test_a_crop_of_two_fifths_is_found_again(photo: Image) -> None:
    h, w = photo.size
    y, x = int(0.3 * h), int(0.25 * w)
    b = photo.pixels[y : y + int(0.63 * h), x : x + int(0.63 * w)]
    result = match(photo, b, guide="never")
    assert metrics.mma(result, np.array([[1.0, 0, -x], [0, 1, -y], [0, 0, 1]]))[3] > 0.95
    assert result.geometry().n > 100


def test_no_flow_guides_where_lightglue_has_its_say(photo: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches near a flow that found nothing would agree with it: 3 of 180 unrelated pairs did."""
    asked: list[str] = []

    class Flows:
        def both(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append("flow")
            return torch.full((*a.shape[1:], 2), torch.nan), torch.full((*b.shape[1:], 2), torch.nan)

    monkeypatch.setattr("likewise.pixels.default", Flows)
    other = texture(3, (240, 320), blur=3.0)
    assert not match(photo, other).geometry()
    assert match(photo, photo.pixels[:, 5:]).geometry()
    assert asked == []
    match(photo, photo.pixels[:, 5:], features="sift")  # no LightGlue of its own: guided
    assert asked == ["flow"]


def test_without_its_weights_lightglue_gives_way(turned, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise FileError(f"the weights {name} are not there")

    a, b, _ = turned
    monkeypatch.setattr(nearest, "_lightglue", missing)
    fallen = match(a, b, guide="never", most=300)
    assert np.array_equal(fallen.b, match(a, b, matcher="mutual", guide="never", most=300).b)
    with pytest.raises(FileError, match="are not there"):
        match(a, b, matcher="lightglue")


# ------------------------------------------------------------------------------------------------- nothing to match


def test_blank_tiny_and_odd_pictures_say_why_there_is_nothing() -> None:
    shown = texture(size=(90, 120))
    for a, b, who in (
        (np.zeros((80, 80), np.uint8), shown, "in a:"),
        (shown, np.zeros((3, 5, 4), np.uint8), "in b:"),
        (torch.ones(3, 20, 30), np.full((70, 70), 9, np.uint16), "in a and b:"),
    ):
        for result in (raw(a, b), match(a, b, guide=STILL), match(a, b, features="sift", guide=STILL)):
            assert len(result) == 0
            assert who in result.reason
            assert "blank" in result.reason
            assert "none" in repr(result)
            assert result.to_dict()["reason"] == result.reason
            assert "4 matches at least" in result.homography().reason
            assert result.pose(np.eye(3), np.eye(3)).R is None


def test_different_sizes_and_depths_match() -> None:
    a, b = texture(2, (120, 160)), texture(2, (120, 160))[:100, 10:]
    H = np.array([[1.0, 0, -10], [0, 1, 0], [0, 0, 1]])
    result = match(
        a.astype(np.uint16) * 257, np.dstack([b] * 3 + [np.full_like(b, 255)]), features="sift", guide=Moved(H)
    )
    assert metrics.mma(result, H)[1] > 0.9
    assert not result.reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radius": 0}, "radius: expected"),
        ({"search": "some"}, "search: expected 'all' or 'left'"),
        ({"ratio": 1.5}, "ratio: expected"),
        ({"features": (1, 2, 3)}, "features: expected a name"),
        ({"features": "surf"}, "features: expected xfeat, sift"),
        ({"features": 3}, "features: expected a name"),
        ({"features": ({"keypoints": [[0, 0]]}, {})}, "features: expected keypoints and descriptors in a dict"),
        ({"guide": 3}, "guide: expected 'auto', 'never', two flows .* or something with .align"),
        ({"guide": "sometimes"}, "guide: expected 'auto'"),
        ({"guide": (np.zeros((4, 4, 3)), np.zeros((4, 4, 2)))}, "flow a→b: expected"),
        ({"guide": (np.zeros((4, 4, 2)), np.zeros((4, 2)))}, "flow b→a: expected"),
        ({"features": ([[1, 1]], [[1, 2]], [[1, 1]], [[1, 2, 3]])}, "features: those of a and b cannot be compared"),
        ({"matcher": "superglue"}, "matcher: expected one of auto, lighterglue"),
        ({"matcher": "lightglue"}, "matcher: lightglue cannot match sift: there are weights for xfeat"),
        ({"matcher": "lighterglue"}, "matcher: LightGlue of xfeat cannot match"),
        ({"matcher": "lighterglue", "ratio": 0.8}, "ratio: expected None with the matcher lighterglue"),
        ({"most": 0}, "most: expected"),
    ],
)
def test_wrong_arguments_are_named(options: dict, words: str) -> None:
    shown = texture(size=(90, 120))
    with pytest.raises(InputError, match=words):
        match(shown, shown, **({"features": "sift", "guide": STILL} | options))


# --------------------------------------------------------------------------------------------------------------- files


def some(n: int = 12, sizes: tuple[tuple[int, int], tuple[int, int]] | None = None) -> Matches:
    rng = np.random.default_rng(0)
    stage = rng.integers(1, 3, n)
    return Matches(rng.uniform(0, 90, (n, 2)), rng.uniform(0, 90, (n, 2)), stage, rng.random(n), sizes=sizes)


def test_parts_and_summary() -> None:
    result = some()
    first = result.of_stage(1)
    assert isinstance(first, Matches)
    assert (first.stage == 1).all()
    none = result.take(np.zeros(12, dtype=bool))
    assert len(none) == 0
    assert none.reason
    assert result.to_dict()["matches"] == 12


@pytest.mark.parametrize("kept", [some(), some(0), some(5, ((90, 100), (91, 120)))])
def test_arrays_there_and_back(kept: Matches, tmp_path) -> None:
    back = Matches.open(kept.save(tmp_path / "m.npz"))
    assert all(np.array_equal(getattr(kept, n), getattr(back, n)) for n in ("a", "b", "stage", "score"))
    assert (back.reason, back.sizes, back.take([]).sizes) == (kept.reason, kept.sizes, kept.sizes)


def test_what_is_no_file_of_matches_is_refused(tmp_path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros((1, 2)))
    with pytest.raises(FileError, match="lacks b, score, stage"):
        Matches.open(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", **{n: getattr(some(), n) for n in ("a", "b", "stage", "score")}, sizes=np.zeros(3))
    with pytest.raises(FileError, match="sizes are no"):
        Matches.open(tmp_path / "y.npz")
    with pytest.raises(InputError, match="path: expected"):
        some().save(tmp_path / "m.csv")
