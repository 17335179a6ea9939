"""The embedder: every kind of input gives one and the same row; order, skipping, determinism, parts, speed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import likewise as lw
from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import Embedder, default
from likewise.images import embedder as module
from likewise.images.compare import thumbnail
from likewise.nn import named
from likewise.nn.backbone import crop
from likewise.types import Image as Photo


def scene(seed: int, height: int = 90, width: int = 120) -> np.ndarray:
    """Coloured noise at several scales: pictures that an embedder can tell apart."""
    rng = np.random.default_rng(seed)
    layers = [rng.integers(0, 256, (n, n, 3), dtype=np.uint8) for n in (3, 9, 27)]
    grown = [np.asarray(Image.fromarray(a).resize((width, height), Image.Resampling.BICUBIC), float) for a in layers]
    return np.mean(grown, axis=0).astype(np.uint8)


@pytest.fixture(scope="module")
def embedder() -> lw.images.Embedder:
    return lw.images.default()


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for i in (1, 2, 10, 3):
        media.write_image(folder / f"p{i}.png", scene(i))
    return folder


def test_rows_are_unit_float32_in_the_order_given(embedder: lw.images.Embedder, album: Path) -> None:
    rows = embedder.embed(album)
    assert rows.shape == (4, embedder.dim) == (4, 1280)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    names = ["p1.png", "p2.png", "p3.png", "p10.png"]
    for name, row in zip(names, rows, strict=True):
        np.testing.assert_allclose(embedder.embed(album / name)[0], row, atol=1e-5)
    assert np.linalg.norm(rows[0] - rows[1]) > 0.1


def test_the_row_is_the_backbones_own(embedder: lw.images.Embedder) -> None:
    """crop → (b, 3, 224, 224) / 255 → features → unit length, with the network as it comes from its file."""
    array = scene(0)
    x = torch.from_numpy(crop(array).copy()).permute(2, 0, 1)[None] / 255
    with torch.no_grad():
        y = named("efficientnet-lite0").features(x)[0].numpy()
    np.testing.assert_allclose(embedder.embed([array])[0], y / np.linalg.norm(y), atol=1e-5)


def test_every_kind_of_input_gives_the_same_bytes(embedder: lw.images.Embedder, album: Path) -> None:
    path = album / "p1.png"
    array = media.read_array(path)
    with Image.open(path) as im:
        forms = [path, str(path), array, array / 255.0, im, lw.read(path), torch.from_numpy(array).permute(2, 0, 1)]
        rows = [embedder.embed([form])[0] for form in forms]
        mixed = embedder.embed(forms)
    for row in rows[1:]:
        assert row.tobytes() == rows[0].tobytes()
    np.testing.assert_allclose(mixed, np.stack(rows), atol=1e-5)


def test_rows_do_not_depend_on_the_batch_and_repeat_exactly(embedder: lw.images.Embedder) -> None:
    arrays = [scene(i) for i in range(11)]
    rows = embedder.embed(arrays, batch_size=32)
    for size in (1, 3, 5):
        np.testing.assert_allclose(embedder.embed(arrays, batch_size=size), rows, atol=1e-5)
    np.testing.assert_allclose(embedder.embed(arrays[::-1])[::-1], rows, atol=1e-5)
    assert embedder.embed(arrays).tobytes() == rows.tobytes()


def test_rows_do_not_depend_on_the_number_of_threads_which_is_left_alone(embedder: lw.images.Embedder) -> None:
    arrays = [scene(i) for i in range(9)]
    before = torch.get_num_threads()
    try:
        rows = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            rows.append(embedder.embed(arrays).tobytes())
            assert torch.get_num_threads() == threads
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(torch.get_num_threads).result() == threads
    finally:
        torch.set_num_threads(before)
    assert rows[0] == rows[1] == rows[2]


def test_unreadable_pictures_raise_or_are_skipped_by_name(embedder: lw.images.Embedder, tmp_path: Path) -> None:
    media.write_image(tmp_path / "a.png", scene(1))
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:500])
    items = [tmp_path / "a.png", tmp_path / "b.png", tmp_path / "none.jpg", np.zeros((2, 2, 7), np.uint8), scene(2)]
    with pytest.raises(FileError, match=r"b\.png"):
        embedder.embed(items)
    rows = embedder.embed(items, on_error="skip", progress=True, batch_size=1)
    assert rows.shape == (2, 1280)
    assert [(s.index, Path(s.name).name) for s in embedder.skipped] == [(1, "b.png"), (2, "none.jpg"), (3, "image 3")]
    assert "no such file" in embedder.skipped[1].reason
    np.testing.assert_allclose(rows, embedder.embed([items[0], items[4]]), atol=1e-5)
    assert embedder.skipped == ()
    assert embedder.embed(tmp_path, on_error="skip").shape == (1, 1280)


def test_no_thread_outlives_an_error(embedder: lw.images.Embedder, tmp_path: Path) -> None:
    def busy() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith("likewise-decode")]

    with pytest.raises(FileError) as caught:
        embedder.embed([tmp_path / "none.png", *(scene(i) for i in range(50))])
    assert busy() == [], caught


def test_progress_goes_to_stderr(embedder: lw.images.Embedder, album: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embedder.embed(album, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "100%" in err


def test_wrong_arguments_are_named(embedder: lw.images.Embedder, tmp_path: Path) -> None:
    for images, options, error, said in (
        ([scene(1)], {"batch_size": 0}, InputError, "batch_size"),
        ([scene(1)], {"on_error": "ignore"}, InputError, "on_error"),
        (7, {}, InputError, "image: expected paths"),
        ([scene(1), None], {}, InputError, "image 1: expected a path"),
        ([torch.zeros(5, 5, 3)], {}, ShapeError, "image 0: expected a tensor"),
        (tmp_path, {}, FileError, "no image in this folder"),
    ):
        with pytest.raises(error, match=said):
            embedder.embed(images, **options)


def test_images_are_decoded_off_the_main_thread_and_only_so_far_ahead(
    embedder: lw.images.Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, handed, most, forwarded = set(), 0, 0, 0

    def noted(*arguments: object) -> np.ndarray:
        threads.add(threading.current_thread().name)
        return crop(*arguments)  # type: ignore[arg-type]

    def source() -> Iterator[np.ndarray]:
        nonlocal handed, most
        for i in range(20):
            handed += 1
            most = max(most, handed - forwarded)
            yield scene(i, 30, 30)

    def forward(batch: list[np.ndarray]) -> np.ndarray:
        nonlocal forwarded
        forwarded += len(batch)
        return np.zeros((len(batch), 1280), np.float32)

    monkeypatch.setattr(module, "crop", noted)
    monkeypatch.setattr(embedder, "_forward", forward)
    assert embedder.embed(source(), batch_size=2).shape == (20, 1280)
    assert threads
    assert all(name.startswith("likewise-decode") for name in threads)
    assert most <= 4 + 2, "no more than the lookahead and a batch are in memory"


def test_an_image_is_embedded_and_decoded_once(
    embedder: lw.images.Embedder, album: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row stays on an Image that the caller holds, by the model's digest; files of a folder keep nothing."""
    rows = embedder.embed(album)
    photos = [Photo(album / name) for name in ("p1.png", "p2.png")]
    passed: list[int] = []
    forward = Embedder._forward
    monkeypatch.setattr(
        Embedder, "_forward", lambda self, crops, **k: (passed.append(len(crops)), forward(self, crops, **k))[1]
    )
    np.testing.assert_allclose(embedder.embed(photos), rows[:2], atol=1e-6)
    again = default()
    np.testing.assert_allclose(again.embed([photos[1], photos[0]]), rows[[1, 0]], atol=1e-6)
    assert lw.images.compare(*photos).distance == pytest.approx(np.linalg.norm(rows[0] - rows[1]), abs=1e-5)
    assert sum(passed) == 2
    mixed = embedder.embed([photos[0], album / "p3.png"])
    np.testing.assert_allclose(mixed, rows[[0, 2]], atol=1e-6)
    other = Embedder(embedder.network, name="mirrored", dim=1280, mirror=True)
    assert np.abs(other.embed(photos) - rows[:2]).max() > 1e-4


# ------------------------------------------------------------------------------------------------------- preparation


def test_crop_is_resize_to_256_then_centre_224() -> None:
    """Against the two steps done one after the other, on sizes where both land on whole pixels."""
    for height, width in [(512, 512), (256, 400), (512, 768)]:
        array = scene(3, height, width)
        k = 256 / min(height, width)
        size = (round(width * k), round(height * k))
        two = np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BICUBIC), int)
        top, left = (size[1] - 224) // 2, (size[0] - 224) // 2
        assert np.abs(crop(array) - two[top : top + 224, left : left + 224]).max() <= 1


@given(height=st.integers(1, 400), width=st.integers(1, 400))
def test_any_size_can_be_prepared(height: int, width: int) -> None:
    array = np.full((height, width, 3), 77, np.uint8)
    assert crop(array).shape == (224, 224, 3)
    for made in (crop(array), thumbnail(array, 50)):
        assert (made == 77).all()
    assert max(thumbnail(array, 50).shape[:2]) <= 50


def test_a_large_jpeg_decoded_small_nearly_keeps_its_row(embedder: lw.images.Embedder, tmp_path: Path) -> None:
    import skimage.data

    cat, coffee = Image.fromarray(skimage.data.chelsea()), skimage.data.coffee()
    large = cat.resize((4 * cat.width, 4 * cat.height), Image.Resampling.LANCZOS)
    media.write_image(tmp_path / "large.jpg", np.asarray(large))
    assert Photo(tmp_path / "large.jpg").reduced(512).shape == (600, 902, 3)
    rows = embedder.embed([tmp_path / "large.jpg", media.read_array(tmp_path / "large.jpg"), coffee])
    assert np.linalg.norm(rows[0] - rows[1]) < 0.05 * np.linalg.norm(rows[0] - rows[2])


# ------------------------------------------------------------------------------------------------------------- parts


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine small pictures, each of one colour in each quarter."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for i in range(9):
        quarters = draw.integers(0, 255, (2, 2, 3), dtype=np.uint8)
        media.write_image(folder / f"{i}.png", quarters.repeat(40, 0).repeat(48, 1))
    return folder


def files(folder: Path) -> list[str]:
    return [str(folder / f"{i}.png") for i in range(9)]


# ------------------------------------------------------------------------------------------------------ the house


def test_importing_the_level_imports_no_torch() -> None:
    heavy = "('torch', 'PIL', 'sklearn', 'matplotlib', 'jaxtyping', 'cv2')"
    code = f"import sys, likewise.images as i; dir(i); print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_default_embedders_share_one_network() -> None:
    a, b = lw.images.default(), lw.images.default()
    assert a is not b
    assert a.network is b.network
    assert repr(a) == "Embedder(efficientnet-lite0-imagenet, 1280 dimensions)"
