"""The level keeps the contract of a level; the aligner on worlds with known answers; its steps one by one."""

from __future__ import annotations

import functools
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import likewise as lw
from likewise import media, samples
from likewise.pixels.aligner import (
    WEIGHTS,
    Aligned,
    Aligner,
    AlignerOptions,
    Seed,
    Work,
    believed,
    compose_flows,
    cues,
    default,
    first_flows,
    fit_homography,
    match_seed,
    plane_errors,
    polish,
    refine_ecc,
    resize_flows,
    snap_to_homography,
)
from likewise.pixels.compare import compare
from likewise.pixels.geometry import grid, homography_flow, resize, sample, transform
from likewise.pixels.life.network import Network
from likewise.types import Image
from worlds.aligners import Shifted
from worlds.contract import ContractOfALevel
from worlds.scenes import moved, texture


@functools.cache
def small() -> Aligner:
    """XFeat's published trunk and a recurrence that has learned nothing: no training, seconds."""
    torch.manual_seed(0)
    network = Network(hidden=16)
    network.encoder.begin()
    return Aligner(network, AlignerOptions(least=96, iters=2, fine=False), name="small")


class TestPixels(ContractOfALevel):
    def pair(self):
        return texture(0, 72, 96), texture(1, 72, 96)

    def model(self):
        return small()

    def careful(self):
        """The same network, given more pixels and steps."""
        return Aligner(small().network, AlignerOptions(iters=2))

    def compare(self, x, y):
        return compare(x, y, model=self.model())

    def wrong(self):
        x, y = self.pair()
        torn = torch.rand(3, 96, 128)
        torn[0, 0, 0] = float("nan")
        return [
            (lambda: compare(x[:40], y), "a: 96 × 40 pixels are too few"),
            (lambda: compare(x, np.zeros((72, 96, 3), np.uint8)), "b: the image is blank"),
            (lambda: compare(x, 3), "b"),
            (lambda: compare(torch.rand(5, 96, 128), y), "a"),
            (lambda: compare(torch.rand(3, 96, 128) * 255, y), "a: expected floats in"),
            (lambda: compare(torn, y), "a: expected floats in"),
            (lambda: compare(x, np.zeros((72, 96, 7), np.uint8)), "b"),
        ]

    def test_an_image_stays_where_it_is(self):
        x, _ = self.pair()
        result = self.compare(x, x)
        assert np.abs(np.asarray(result.flow)).max() < 0.05
        assert result.cycle_consistency > 0.95  # a pixel of the rim may lie 1e-6 px outside

    def test_a_moved_picture_is_laid_back(self):
        """An image moved by (6, −4) px: the flow says so, and b warped to a is a again."""
        x = texture(2, 120, 160)
        result = compare(x, moved(x, 6, -4), model=self.careful())
        inner = np.asarray(result.flow)[16:-16, 16:-16]
        assert np.median(np.linalg.norm(inner - [6, -4], axis=-1)) < 0.5
        laid = result.warp()[16:-16, 16:-16].astype(float)
        assert np.abs(laid - x[16:-16, 16:-16]).mean() < 6
        assert np.abs(moved(x, 6, -4).astype(float) - x)[16:-16, 16:-16].mean() > 20

    def test_saved_and_loaded_it_answers_the_same(self, tmp_path: Path):
        """Weights are kept in half precision: the loaded one is the one that counts, and it is stable."""
        x, y = self.pair()
        lw.save(self.model(), tmp_path / "one.safetensors")
        once = lw.load(tmp_path / "one.safetensors")
        lw.save(once, tmp_path / "two.safetensors")
        twice = lw.load(tmp_path / "two.safetensors")
        assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
        assert compare(x, y, model=once).to_json() == compare(x, y, model=twice).to_json()
        assert np.abs(np.asarray(compare(x, x, model=once).flow)).max() < 0.05

    def test_sizes_may_differ_and_pictures_come_in_any_form(self, tmp_path: Path):
        x, y = texture(0, 96, 128), texture(1, 80, 150)
        result = self.compare(x, y)
        assert np.asarray(result.flow).shape == (96, 128, 2)
        assert np.asarray(result.back).shape == (80, 150, 2)
        assert result.confidence.shape == (96, 128)
        media.write_image(tmp_path / "x.png", x)
        tensor = torch.from_numpy(x).permute(2, 0, 1) / 255
        grey = x[..., 0]
        same = [self.compare(form, y).distance for form in (tmp_path / "x.png", tensor)]
        assert same == [result.distance] * 2
        assert self.compare(grey, np.repeat(grey[..., None], 3, 2)).cycle_consistency > 0.95


def test_the_cycle_error_and_what_comes_home_by_hand():
    """Flows that miss by 4 px everywhere: the cycle error is 4, and 4 > max(3, 5 % of the way) is not consistent."""

    class Off(Shifted):
        def both(self, a, b):
            there = self.flow(a, b)
            return there, -there + torch.tensor([0.0, 4.0])

    x = texture(0, 96, 128)
    right, off = (compare(x, x, model=m) for m in (Shifted(0, 0), Off(0, 0)))
    assert (right.distance, right.cycle_consistency) == (0.0, 1.0)
    assert off.cycle_error.max() == pytest.approx(4.0, rel=1e-5)
    assert off.cycle_consistency == 0.0
    assert off.reason
    assert off.distance == pytest.approx(np.hypot(96, 128))  # nothing is sure: the diagonal
    assert not off.warp().any()
    assert off.confidence.max() == pytest.approx(np.exp(-((4 / 3) ** 2)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights that ship are not in this tree")
class TestShipped(TestPixels):
    """The same of the network that ships, with all that it does to a pair."""

    def model(self):
        return lw.pixels.default()

    def careful(self):
        return lw.pixels.default()


# ---------------------------------------------------------------------------------------------------------- the aligner


@pytest.fixture(scope="module")
def photo():
    data = pytest.importorskip("skimage.data")
    return torch.from_numpy(data.astronaut()).permute(2, 0, 1).float()[:, :300, 60:440] / 255


@pytest.fixture(scope="module")
def tilted(photo):
    """The photo seen through a homography, in another light, and the flow from the photo to it."""
    H = torch.tensor([[0.93, -0.16, 38.0], [0.12, 1.02, -14.0], [2e-4, 1e-4, 1.0]])
    h, w = photo.shape[-2:]
    seen = sample(photo[None], transform(torch.linalg.inv(H), grid(h, w))[None], padding="border")[0]
    return (seen**1.6 * torch.tensor([0.9, 0.75, 0.6]).view(3, 1, 1)).clamp(0, 1), homography_flow(H, h, w)


@pytest.mark.parametrize("which", [0, 1])
def test_a_photo_compared_with_itself_stays_where_it_is(which):
    """The recurrence alone drifts by 0.03 px a step, up to 8 px on bare walls: what is left is that it is one plane."""
    photo = samples.pair()[which]
    result = compare(photo, photo)
    assert np.asarray(result.flow).shape == (*photo.shape[:2], 2)
    assert np.linalg.norm(np.asarray(result.flow), axis=-1).max() < 0.05


def test_a_homography_under_another_light_is_found(photo, tilted):
    b, truth = tilted
    flow = default().flow(photo, b)
    inside = torch.isfinite(truth).all(-1)
    error = torch.linalg.vector_norm(flow - truth, dim=-1)[inside]
    assert error.mean() < 1.5
    assert error.mean() < 0.1 * torch.linalg.vector_norm(truth, dim=-1).mean()


@pytest.mark.slow
def test_the_way_back_returns(photo, tilted):
    result = default().align(photo, tilted[0])
    assert result.cycle_consistency() > 0.75
    assert result.swapped().cycle_consistency() > 0.75


@pytest.mark.slow
def test_pictures_of_other_sizes(photo, tilted):
    """b at two thirds of its size: the flow ends in b's own pixels."""
    b, truth = tilted
    h, w = 200, 254
    small = resize(b, (h, w))
    flow = default().flow(photo, small)
    base = grid(*photo.shape[-2:])
    scale = torch.tensor([w / photo.shape[-1], h / photo.shape[-2]])
    wanted = (base + truth + 0.5) * scale - 0.5 - base
    error = torch.linalg.vector_norm(flow - wanted, dim=-1)
    assert error.median() < 1.0


@pytest.mark.slow
def test_turned_by_a_right_angle(photo):
    """A photo on its side: searched, and found again."""
    b = photo.rot90(1, (1, 2))
    flow = default().flow(photo, b)
    h, w = photo.shape[-2:]
    base = grid(h, w)
    wanted = torch.stack([base[..., 1], w - 1 - base[..., 0]], -1) - base
    assert torch.linalg.vector_norm(flow - wanted, dim=-1).median() < 1.5


def test_the_shipped_weights_are_small_and_say_how_they_were_made():
    assert WEIGHTS.stat().st_size < 5_000_000
    assert WEIGHTS.with_suffix(".md").exists()
    assert default().recipe


# -------------------------------------------------------------------------------------------------------------- parts


def flat(H, h=60, w=80):
    back = homography_flow(torch.linalg.inv(H), h, w)
    return Aligned(homography_flow(H, h, w), back)


def test_agreement_finds_the_homography_among_outliers():
    H = torch.tensor([[1.05, 0.1, -3.0], [-0.08, 0.96, 4.0], [1e-4, -2e-4, 1.0]])
    result = flat(H)
    g = torch.Generator().manual_seed(0)
    ab = result.ab + 0.2 * torch.randn(60, 80, 2, generator=g)
    lost = torch.rand(60, 80, generator=g) < 0.4
    ab[lost] += 30 * torch.randn(int(lost.sum()), 2, generator=g)
    got = fit_homography(Aligned(ab, result.ba))
    assert torch.allclose(got / got[2, 2], H, atol=5e-3, rtol=5e-2)


def test_one_plane_is_snapped_and_two_are_not():
    H = torch.tensor([[1.02, 0.03, 2.0], [-0.02, 0.99, -1.0], [0.0, 0.0, 1.0]])
    result = flat(H)
    noisy = Aligned(result.ab + 0.3 * torch.randn(60, 80, 2, generator=torch.Generator().manual_seed(0)), result.ba)
    blank = torch.zeros(3, 60, 80)  # nothing to sharpen it by
    better = snap_to_homography(noisy, blank, blank)
    assert "one plane" in better.steps
    assert (better.ab - result.ab).abs().max() < 0.15
    two = result.ab.clone()
    two[:, 40:, 0] += 6.0
    ba = result.ba.clone()
    ba[:, 46:, 0] -= 6.0
    assert snap_to_homography(Aligned(two, ba), blank, blank).steps == ()


def test_a_plane_is_judged_by_the_flow_it_was_fitted_to():
    """A homography and its inverse bring every pixel home, also those of a car in front of the wall."""
    result = flat(torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]]))
    ab, blank = result.ab.clone(), torch.zeros(3, 60, 80)
    ab[:10, :10] += torch.tensor([9.0, 12.0])  # a corner that goes elsewhere, and does not come back
    free = Aligned(ab, result.ba)
    better = snap_to_homography(free, blank, blank)
    assert better.steps == ("one plane",)
    for judged in (better, better.swapped().swapped(), resize_flows(better, (60, 80), (60, 80))):
        d, kept = judged.errors()
        assert torch.allclose(d[:10, :10], torch.tensor(15.0), atol=0.1)
        assert float(d[12:, 12:].max()) < 0.1
        assert kept[30, 30]
    lost = 100 / (60 * 80)
    assert better.cycle_consistency() == pytest.approx(float(kept.float().mean()) - lost, abs=0.01)
    large = resize_flows(better, (120, 160), (120, 160))
    assert float(large.errors()[0][4:12, 4:12].mean()) == pytest.approx(30.0, abs=0.5)


def test_small_motion_in_depth_is_no_plane(photo):
    """A disc that moves by a pixel against its ground agrees with a plane to 1.5 px, but does not look like one."""
    a = resize(photo, (158, 200))
    h, w = a.shape[-2:]
    base = grid(h, w)
    disc = (torch.linalg.vector_norm(base - torch.tensor([w / 2, h / 2]), dim=-1) < h / 3)[..., None]
    flow = torch.where(disc, torch.tensor([1.2, 0.0]), torch.tensor([0.0, 0.0]))
    b = sample(a[None], (base - flow)[None], padding="border")[0]
    result = Aligned(flow, -flow)
    assert snap_to_homography(result, a, b).steps == ()
    assert snap_to_homography(Aligned(0 * flow + 0.1, 0 * flow - 0.1), a, a).steps == ("one plane",)


def test_a_homography_is_sharpened_by_grey_values(photo, tilted):
    H = torch.tensor([[0.93, -0.16, 38.0], [0.12, 1.02, -14.0], [2e-4, 1e-4, 1.0]])
    rough = H + torch.tensor([[0.002, 0.0, 0.4], [0.0, -0.002, 0.3], [0.0, 0.0, 0.0]])
    better = refine_ecc(rough, photo, tilted[0])
    corners = torch.tensor([[40.0, 40.0], [300.0, 60.0], [280.0, 250.0]])
    before, after = ((transform(M, corners) - transform(H, corners)).abs().max() for M in (rough, better))
    assert after < 0.15 < 0.5 * before
    far = H + torch.tensor([[0.0, 0.0, 30.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    blank = torch.zeros(3, 80, 80)
    assert torch.equal(refine_ecc(far, blank, blank), far)


def test_no_agreement_without_pixels_that_come_home():
    torch.manual_seed(0)
    assert fit_homography(Aligned(30 * torch.randn(60, 80, 2), 30 * torch.randn(60, 80, 2))) is None


def test_first_flows_are_what_the_matches_leave():
    """A seed that is off by (8, 0) px at two points: one cell to the right there, one to the left on the way back."""
    H = torch.tensor([[1.0, 0.0, 5.0], [0.0, 1.0, -3.0], [0.0, 0.0, 1.0]])
    a = torch.tensor([[19.5, 27.5], [59.5, 43.5]])
    there, back = first_flows(Seed(H, a, a + torch.tensor([13.0, -3.0])), (64, 96))
    assert there.shape == (8, 12, 2)
    assert torch.allclose(there, torch.tensor([1.0, 0.0]).expand(8, 12, 2), atol=1e-5)
    assert torch.allclose(back, torch.tensor([-1.0, 0.0]).expand(8, 12, 2), atol=1e-5)
    flows = compose_flows(Seed(H, a, a), torch.zeros(2, 64, 96, 2), (70, 90))
    assert torch.allclose(flows.ab, homography_flow(H, 64, 96), atol=1e-4)
    assert torch.allclose(flows.ba, homography_flow(torch.linalg.inv(H), 70, 90), atol=1e-4)


def test_a_seed_is_matched_again_under_its_homography(photo, tilted):
    one, two = resize(photo, (288, 384)), resize(tilted[0], (288, 384))
    seed = match_seed(Image(photo), Image(tilted[0]), one, two)
    assert seed is not None
    assert seed.steps == ("matches", "matched again under their homography")
    assert len(seed.a) == len(seed.b) > 100


def test_plane_errors_are_those_of_planes_fitted_again():
    """Homographies fitted to noisy points scatter as the standard errors say: more, far from the points."""
    rng = np.random.default_rng(0)
    a = np.stack(np.meshgrid(np.arange(20, 200, 24.0), np.arange(20, 140, 24.0)), -1).reshape(-1, 2)
    cells = grid(20, 40).reshape(-1, 2).numpy() * 8 + 3.5
    fits = []
    for _ in range(150):
        H, _ = cv2.findHomography(a, a + rng.normal(0, 1.0, a.shape), 0)
        fits.append(cv2.perspectiveTransform(cells[None], H)[0])
    scatter = np.sqrt(np.var(fits, axis=0).sum(-1)).reshape(20, 40)
    p = torch.from_numpy(a).float()
    noise = torch.from_numpy(rng.normal(0, 1.0, a.shape)).float()
    said = plane_errors(Seed(torch.eye(3), p, p + noise), (160, 320)).numpy()
    near, far = np.s_[4:16, 4:22], np.s_[:, 34:]
    assert 0.7 < np.median(said[near] / scatter[near]) < 1.6  # half a pixel is added to what residuals say
    assert 0.5 < np.median(said[far] / scatter[far]) < 2
    assert np.median(said[far]) > 4 * np.median(said[near])


def test_moves_are_believed_where_cells_return():
    """Of a flow that returns everywhere all is believed, of one that does not only what returns; in depth, all."""
    there = torch.zeros(1, 12, 16, 2) + torch.tensor([0.5, 0.0])
    consistent = torch.cat([there, -there])
    assert float(believed(consistent, 0.1)[:, :, 2:-2].min()) == 1  # at the rim, cells leave the other photo
    torn = consistent.clone()
    torn[0, :, :8] += 3.0
    share = believed(torn, 0.1)
    assert float(share[0, :, :6].max()) == 0
    assert float(share[0, 2:-2, 10:14].min()) == 1
    assert float(believed(torn, float("inf")).min()) == 1


def test_the_tolerance_is_of_the_photo_itself_where_it_was_enlarged():
    """3 px of a photo of 96 × 128 px are nine where it is aligned three times as large: surer."""
    seed = Seed(torch.eye(3), torch.rand(30, 2) * 60, torch.rand(30, 2) * 60)
    work = Work(
        Aligned(torch.zeros(64, 64, 2), torch.zeros(64, 64, 2)), seed, torch.zeros(2, 64, 64, 2), torch.zeros(2, 8, 8)
    )
    small, large = (cues(work, t).values[..., -1].unique().tolist() for t in (3.0, 9.0))
    assert small == pytest.approx([np.log(3)])
    assert large == pytest.approx([np.log(9)])
    for weights in default().calibration:
        assert weights[1] < 0.5  # a larger round-trip error is no better sign
        assert weights[4] < 0.5  # nor is a less certain plane
        assert weights[5] > 0


def test_a_calibration_of_another_form_is_refused():
    with pytest.raises(lw.InputError, match=r"calibration: expected weights \(2, 6\), got shape \(6,\)"):
        Aligner(Network(hidden=16), calibration=[1.0] * 6)  # type: ignore[list-item]


def test_a_pixel_of_b_is_as_sure_as_where_it_lands():
    ab = torch.tensor([2.0, 0.0]).expand(40, 50, 2)
    sure = torch.rand(40, 50, generator=torch.Generator().manual_seed(0))
    one, two = Aligned(ab, -ab, sure=sure).confidences()
    assert torch.equal(one, sure)
    assert torch.allclose(two[:, 2:], sure[:, :-2], atol=1e-5)
    assert torch.allclose(two[:, :2], torch.zeros(40, 2), atol=1e-5)  # they land outside a
    lost = Aligned(ab, -ab + torch.tensor([0.0, 20.0]), sure=sure).confidences()[1]
    assert not lost.any()  # they do not return


def test_photos_of_different_things_have_no_alignment():
    cat, coffee = samples.photograph("cat")[:240, :320], samples.photograph("coffee")[:240, :320]
    result = compare(cat, coffee)
    assert result.reason
    assert result.aligned < 0.01
    assert not result.warp().any()
    assert "no alignment" in repr(result)
    assert result.distance == pytest.approx(400.0)
    assert result.to_dict()["reason"] == result.reason


def test_a_warp_leaves_out_what_is_not_sure(photo, tilted):
    result = compare(photo, tilted[0])
    assert not result.reason
    unsure = result.confidence < 0.5
    assert 0.3 < result.aligned < 1.0
    assert not result.warp()[unsure].any()
    assert result.warp(least=0.0)[unsure].any()


def test_polish_takes_half_a_pixel_back(photo):
    a = resize(photo, (126, 160))
    h, w = a.shape[-2:]
    wrong = Aligned(torch.full((h, w, 2), 0.5), torch.full((h, w, 2), -0.5))
    better = polish(wrong, a, a)
    assert torch.linalg.vector_norm(better.ab[8:-8, 8:-8], dim=-1).mean() < 0.2


def test_enlarging_is_exact_for_a_shift():
    result = Aligned(torch.full((40, 50, 2), 2.0), torch.full((40, 50, 2), -2.0))
    large = resize_flows(result, (80, 100), (120, 150))
    base = grid(80, 100)
    wanted = ((base + 0.5) / 2 + 2.0) * 3 - 0.5 - base
    assert torch.allclose(large.ab[2:-2, 2:-2], wanted[2:-2, 2:-2], atol=1e-3)
