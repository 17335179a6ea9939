"""compare(real, fake): every kind of source, what is uncovered, the picture, what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from likewise.distributions.compare import compare
from likewise.distributions.generator import Generator
from likewise.distributions.latents import Normal
from likewise.errors import FileError, InputError, ShapeError, SmallSampleWarning
from likewise.nn.features import extract


class Colours:
    """Mean colour and its spread: features that pool over any size."""

    name = "colours"

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(x.shape))
        assert not torch.is_grad_enabled()
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)


def pictures(n: int, seed: int = 0, tint: float = 0.5, size: tuple[int, int] = (6, 6)) -> np.ndarray:
    """uint8 (n, h, w, 3): noise around a colour."""
    r = np.random.default_rng(seed)
    base = tint + 0.15 * r.normal(size=(n, 1, 1, 3))
    return (np.clip(base + 0.05 * r.normal(size=(n, *size, 3)), 0, 1) * 255).astype(np.uint8)


def folder(path: Path, n: int, **given: object) -> Path:
    path.mkdir()
    for i, picture in enumerate(pictures(n, **given)):
        Image.fromarray(picture).save(path / f"{i}.png")
    return path


def generator(**given: object) -> Generator:
    """Pictures whose colour is their latent."""
    return Generator(lambda z: torch.sigmoid(z)[:, :, None, None].expand(-1, 3, 5, 5), Normal(3), **given)


# --------------------------------------------------------------------------------------------------------- sources


def test_pictures_of_different_sizes_are_described_in_their_own() -> None:
    mixed = [*pictures(3), *pictures(2, size=(8, 4)), *pictures(1)]
    net = Colours()
    assert extract(mixed, net).rows.shape == (6, 6)
    assert net.seen == [(3, 3, 6, 6), (2, 3, 8, 4), (1, 3, 6, 6)]
    with pytest.raises(ShapeError, match="must pool"):
        extract([*pictures(1), *pictures(1, size=(8, 4))], lambda x: x.flatten(1))


def test_a_generator_is_drawn_as_often_as_the_other_side_has_pictures() -> None:
    result = compare(pictures(30), generator(), features=Colours())
    assert result.distance.n_fake == result.distance.n_real == 30
    assert compare(generator(), pictures(30), features=Colours(), n=50).distance.n_real == 50
    again = compare(pictures(30), generator(), features=Colours(), seed=0)
    assert again.to_json() == result.to_json()
    assert compare(pictures(30), generator(), features=Colours(), seed=1).distance != result.distance
    two = compare(generator(), generator(), features=Colours(), n=40)
    assert two.distance > 0


def test_a_generator_of_points_needs_no_net_and_draws_its_classes() -> None:
    flat = Generator(lambda z, y: 2 * z + 30 * y[:, None], Normal(2), labels=2)
    r = np.random.default_rng(0)
    result = compare(r.normal(size=(200, 2)) * 2 + 30 * r.integers(2, size=(200, 1)), flat)
    assert result.net == "features"
    assert result.recall > 0.8
    assert result.precision > 0.8


def test_a_module_is_held_in_evaluation_mode_and_two_of_a_class_have_two_names() -> None:
    torch.manual_seed(0)
    one, two = (nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 2)).train() for _ in range(2))
    x, y = torch.rand(2, 9, 3, 2, 2)
    np.testing.assert_allclose(extract(x, one).rows, one[2](x.flatten(1)).detach().numpy(), rtol=1e-5)
    assert one.training  # given back
    a, b, again = (compare(x, y, features=net) for net in (one, two, one))
    assert a.net == again.net != b.net
    with pytest.raises(InputError, match="differ in net"):
        _ = a.distance < b.distance


def test_the_smooth_net_is_near_the_default_and_has_gradients() -> None:
    from likewise.nn.features import PhotoFeatures

    r = np.random.default_rng(0)
    coarse = torch.as_tensor(r.uniform(size=(2, 3, 4, 4)), dtype=torch.float32)
    x = torch.nn.functional.interpolate(coarse, (240, 240), mode="bicubic").clamp(0, 1)
    smooth, default = PhotoFeatures()(x).numpy(), extract(x).rows
    assert (np.sum(smooth * default, 1) > 0.85).all()
    assert extract(x, PhotoFeatures()).net != extract(x).net
    small = torch.rand(1, 1, 32, 32, requires_grad=True)
    PhotoFeatures()(small)[0, :8].sum().backward()
    assert small.grad is not None
    assert float(small.grad.abs().sum()) > 0
    with pytest.raises(ShapeError, match="images"):
        PhotoFeatures()(torch.zeros(2, 5))


def test_precomputed_features_meet_a_described_side() -> None:
    x = pictures(30)
    kept = extract(x, Colours())
    assert (
        compare(kept, pictures(30, 1), features=Colours()).to_json()
        == compare(x, pictures(30, 1), features=Colours()).to_json()
    )
    bare = compare(kept.rows, pictures(30, 1), features=Colours())
    assert bare.net == "colours"


@pytest.mark.parametrize(
    ("source", "net", "error", "words"),
    [
        (torch.full((4, 3, 5, 5), -0.5), None, InputError, "in \\[0, 1\\]"),
        (torch.rand(4, 3, 5, 5), lambda x: x.flatten(1)[:2], ShapeError, "one row an image"),
        (torch.rand(4, 3, 5, 5), lambda x: x.flatten(1) * np.nan, InputError, "NaN"),
        (torch.rand(4, 3, 5, 5), lambda x: x.sum(), ShapeError, "features"),
        (torch.zeros(4, 3, 5, 5, dtype=torch.int64), Colours(), InputError, "uint8 or floats"),
        (np.full((9, 3), 1e200), None, InputError, r"row 0 contains a number beyond ±3\.4e\+38"),
        ([], None, InputError, "at least one image"),
        (["a", 3], None, InputError, "in the list"),
        (b"x", None, InputError, "got bytes"),
        (np.zeros((0, 3)), None, ShapeError, "features"),
        ("no/such/folder", None, FileError, "no such file or folder"),
    ],
)
def test_wrong_sources_are_named(source, net, error, words) -> None:
    with pytest.raises(error, match=words) as caught:
        extract(source, net, where="real")
    assert "real" in str(caught.value) or "features" in str(caught.value) or "no/such" in str(caught.value)


def test_files_of_features_must_hold_one_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    with pytest.raises(FileError, match="expected one array"):
        extract(tmp_path / "two.npz")
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(FileError, match="neither an image nor a video"):
        extract(tmp_path / "text.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no image"):
        extract(tmp_path / "empty")


def test_unreadable_files_stop_or_are_named_and_left_out(tmp_path: Path) -> None:
    there = folder(tmp_path / "a", 5)
    whole = (there / "2.png").read_bytes()
    (there / "2.png").write_bytes(whole[: len(whole) // 2])
    (there / "no.jpg").write_bytes(b"")
    with pytest.raises(FileError, match=r"no\.jpg"):
        extract(there, Colours())
    result = extract(there, Colours(), on_error="skip")
    assert len(result) == 4
    assert [Path(name).name for name, _ in result.skipped] == ["no.jpg", "2.png"]
    assert "2.png" not in " ".join(result.names or ())
    for p in there.iterdir():
        p.write_bytes(whole[:60])
    with pytest.raises(FileError, match="none of"):
        extract(there, Colours(), on_error="skip")


# -------------------------------------------------------------------------------------------------------- uncovered


def test_the_pictures_that_nothing_covers_are_named_the_farthest_first(tmp_path: Path) -> None:
    """Thirty grey pictures on each side, and three in A that B has nothing like."""
    a, b = folder(tmp_path / "a", 30), folder(tmp_path / "b", 30, seed=1)
    for name, tint in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 200))):
        Image.new("RGB", (6, 6), tint).save(a / f"{name}.png")
    result = compare(a, b, features=Colours(), k=2)
    lost = [Path(name).stem for name in result.uncovered]
    assert {"red", "green", "blue"} <= set(lost)
    margin = result.support.real.margin[result.support.uncovered]
    assert (np.diff(margin) <= 0).all()
    assert (margin > 0).all()
    assert len(lost) / 33 == pytest.approx(1 - float(result.recall))
    assert compare(a, a, features=Colours()).uncovered == ()
    record = json.loads(result.to_json())
    assert [Path(row["sample"]).stem for row in record["uncovered"]] == lost
    assert Path(record["uncovered"][0]["nearest"]).parent.name == "b"
    assert (record["net"], record["n_real"], record["n_fake"], record["k"]) == ("colours", 33, 30, 2)
    assert set(record["figures"]) == {"frechet", "kid", "precision", "recall", "density", "coverage"}
    assert record["figures"]["recall"]["value"] == float(result.recall)
    assert record["figures"]["frechet"]["value"] == record["distance"]


# ---------------------------------------------------------------------------------------------------------- picture


def words(figure) -> str:
    return " | ".join(t.get_text() for ax in figure.axes for t in ax.texts)


def test_the_picture_shows_the_uncovered_and_their_nearest(tmp_path: Path) -> None:
    a, b = pictures(30), pictures(30, 1, tint=0.9)
    result = compare(a, b, features=Colours())
    figure = result.plot(tmp_path / "a.png", labels=("old", "new"))
    lost = min(16, len(result.uncovered))
    kept = min(8, 30 - len(result.uncovered))
    assert len(figure.axes[0].images) == 2 * (lost + kept)
    assert f"in old, but not covered by new: {len(result.uncovered)} of 30" in words(figure)
    assert "colours" in words(figure)
    first = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(first, a[result.support.uncovered[0]])
    second = figure.axes[0].images[1].get_array()
    np.testing.assert_array_equal(second, b[result.support.real.index[result.support.uncovered[0]]])
    assert result.plot(tmp_path / "b.png", labels=("old", "new")) is not None
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("d", [1, 2, 3, 9])
def test_features_without_pictures_are_drawn_as_a_map(d: int, tmp_path: Path) -> None:
    r = np.random.default_rng(0)
    result = compare(r.normal(size=(40, d)), r.normal(size=(50, d)) + 0.5)
    figure = result.plot(tmp_path / "map.png")
    points = [c.get_offsets() for c in figure.axes[0].collections]
    assert [len(p) for p in points] == [50, 40 - len(result.uncovered), len(result.uncovered)]
    assert result.plot(tmp_path / "again.png") is not None
    assert (tmp_path / "map.png").read_bytes() == (tmp_path / "again.png").read_bytes()


# ------------------------------------------------------------------------------------------------------------- data


@pytest.mark.slow
def test_real_photos_of_two_kinds(data: Path, tmp_path: Path) -> None:
    """Species A against itself and another species: the net for photos tells them apart."""
    kinds = sorted((data / "cub200").iterdir())[:40:13]
    if len(kinds) < 2:
        pytest.skip("cub200 is not in LIKEWISE_DATA")
    first, other = (sorted(kind.iterdir())[:24] for kind in kinds[:2])
    with pytest.warns(SmallSampleWarning):
        same, far = compare(first[:12], first[12:]), compare(first[:12], other[:12])
    assert same.distance < far.distance
    assert same.recall >= far.recall
    far.plot(tmp_path / "photos.png")


def test_files_are_read_as_grey_for_a_net_of_one_plane(tmp_path: Path) -> None:
    from likewise.media import write_image

    rng = np.random.default_rng(0)
    grey = rng.integers(0, 256, size=(20, 4, 4), dtype=np.uint8)
    for i, picture in enumerate(grey):
        write_image(tmp_path / f"{i:02d}.png", np.repeat(picture[:, :, None], 3, axis=2))
    batch = torch.from_numpy(grey)[:, None].float() / 255
    result = compare(tmp_path, batch, features=lambda x: x.flatten(1))
    assert result.distance == pytest.approx(0, abs=1e-9)
    assert result.recall == 1
