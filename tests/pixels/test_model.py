"""The aligner on worlds with known answers: identity, homographies, other sizes, bad input, storage."""

import numpy as np
import pytest
import torch

from likewise.errors import InputError, ShapeError
from likewise.pixels.aligner import (
    Aligned,
    Aligner,
    AlignerOptions,
    about_centres,
    default,
    fit_homography,
    polish,
    refine_ecc,
    resize_flows,
    snap_to_homography,
    turned,
)
from likewise.pixels.geometry import grid, homography_flow, resize, sample, transform


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


def test_a_photo_and_itself(photo):
    flow = default().flow(photo, photo)
    assert flow.shape == (*photo.shape[-2:], 2)
    assert torch.linalg.vector_norm(flow, dim=-1).max() < 0.05


def test_a_homography_under_another_light_is_found(photo, tilted):
    b, truth = tilted
    flow = default().flow(photo, b)
    inside = torch.isfinite(truth).all(-1)
    error = torch.linalg.vector_norm(flow - truth, dim=-1)[inside]
    assert error.mean() < 1.5
    assert error.mean() < 0.1 * torch.linalg.vector_norm(truth, dim=-1).mean()


@pytest.mark.slow
def test_the_way_back_returns(photo, tilted):
    found = default().align(photo, tilted[0])
    assert found.cycle_consistency() > 0.75
    assert found.swapped().cycle_consistency() > 0.75


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


def test_every_form_of_a_picture(photo):
    pillow = pytest.importorskip("PIL.Image")
    array = (photo * 255).round().byte().permute(1, 2, 0).numpy()
    model = Aligner(default().network, AlignerOptions(search="never", passes=1, polish=False, snap=2.0, work=160))
    wanted = model.flow(photo, array)
    assert torch.allclose(model.flow(array, pillow.fromarray(array)), wanted, atol=1e-3)
    grey = array.mean(2).astype(np.uint8)
    assert model.flow(grey, array).shape == wanted.shape


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (torch.rand(3, 40, 200), "too few"),
        (torch.full((3, 80, 80), 0.5), "blank"),
        (torch.rand(2, 3, 80, 80), "expected a tensor"),
        (3 * torch.rand(3, 80, 80), "in \\[0, 1\\]"),
        (torch.full((3, 80, 80), float("nan")), "in \\[0, 1\\]"),
        (np.zeros((80, 80, 7)), "expected"),
        (7, "expected a path"),
    ],
)
def test_bad_pictures_are_named(photo, picture, message):
    with pytest.raises((InputError, ShapeError), match=message) as caught:
        default().flow(photo, picture)
    assert "b:" in str(caught.value) or "b " in str(caught.value)


def test_the_shipped_weights_are_small_and_say_how_they_were_made():
    from likewise.pixels.aligner import WEIGHTS

    assert WEIGHTS.stat().st_size < 5_000_000
    assert WEIGHTS.with_suffix(".md").exists()
    assert default().recipe


# -------------------------------------------------------------------------------------------------------------- parts


def flat(H, h=60, w=80):
    back = homography_flow(torch.linalg.inv(H), h, w)
    return Aligned(homography_flow(H, h, w), back)


def test_agreement_finds_the_homography_among_outliers():
    H = torch.tensor([[1.05, 0.1, -3.0], [-0.08, 0.96, 4.0], [1e-4, -2e-4, 1.0]])
    found = flat(H)
    g = torch.Generator().manual_seed(0)
    ab = found.ab + 0.2 * torch.randn(60, 80, 2, generator=g)
    lost = torch.rand(60, 80, generator=g) < 0.4
    ab[lost] += 30 * torch.randn(int(lost.sum()), 2, generator=g)
    got = fit_homography(Aligned(ab, found.ba))
    assert torch.allclose(got / got[2, 2], H, atol=5e-3, rtol=5e-2)


def test_one_plane_is_snapped_and_two_are_not():
    H = torch.tensor([[1.02, 0.03, 2.0], [-0.02, 0.99, -1.0], [0.0, 0.0, 1.0]])
    found = flat(H)
    noisy = Aligned(found.ab + 0.3 * torch.randn(60, 80, 2, generator=torch.Generator().manual_seed(0)), found.ba)
    blank = torch.zeros(3, 60, 80)  # nothing to sharpen it by
    better = snap_to_homography(noisy, blank, blank)
    assert "one plane" in better.steps
    assert (better.ab - found.ab).abs().max() < 0.15
    two = found.ab.clone()
    two[:, 40:, 0] += 6.0
    ba = found.ba.clone()
    ba[:, 46:, 0] -= 6.0
    assert snap_to_homography(Aligned(two, ba), blank, blank).steps == ()


def test_a_plane_is_judged_by_the_flow_it_was_fitted_to():
    """A homography and its inverse bring every pixel home, also those of a car in front of the wall."""
    found = flat(torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0], [0.0, 0.0, 1.0]]))
    ab, blank = found.ab.clone(), torch.zeros(3, 60, 80)
    ab[:10, :10] += torch.tensor([9.0, 12.0])  # a corner that goes elsewhere, and does not come back
    free = Aligned(ab, found.ba)
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
    found = Aligned(flow, -flow)
    assert snap_to_homography(found, a, b).steps == ()
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


def test_candidates_turn_scale_and_slant_about_the_centres():
    A = turned(90, 2.0)
    assert torch.allclose(A, torch.tensor([[0.0, -2.0], [2.0, 0.0]]), atol=1e-6)
    assert torch.linalg.det(turned(30, 1.0, 2.2, 60)).item() == pytest.approx(1.0, abs=1e-5)
    H = about_centres(A, (11, 21), (31, 41))
    assert torch.allclose(transform(H, torch.tensor([10.0, 5.0])), torch.tensor([20.0, 15.0]))


def test_polish_takes_half_a_pixel_back(photo):
    a = resize(photo, (126, 160))
    h, w = a.shape[-2:]
    wrong = Aligned(torch.full((h, w, 2), 0.5), torch.full((h, w, 2), -0.5))
    better = polish(wrong, a, a)
    assert torch.linalg.vector_norm(better.ab[8:-8, 8:-8], dim=-1).mean() < 0.2


def test_enlarging_is_exact_for_a_shift():
    found = Aligned(torch.full((40, 50, 2), 2.0), torch.full((40, 50, 2), -2.0))
    large = resize_flows(found, (80, 100), (120, 150))
    base = grid(80, 100)
    wanted = ((base + 0.5) / 2 + 2.0) * 3 - 0.5 - base
    assert torch.allclose(large.ab[2:-2, 2:-2], wanted[2:-2, 2:-2], atol=1e-3)
