"""`likewise images embed | index | search`: what comes in, what goes out, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise import cli, media
from likewise.cli import images_search
from likewise.images.gallery import Gallery
from likewise.store import checkpoint
from worlds.command import Ran
from worlds.galleries import Patches, album, brute, paint

Go = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Go:
    """Run a command in a folder with photos/ and model.safetensors, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(checkpoint._CLASSES, "test.Patches", "worlds.galleries:Patches")
    album(tmp_path / "photos")
    lw.save(Patches(), tmp_path / "model.safetensors")

    def go(verb: str, *words: str | Path | int) -> Ran:
        capsys.readouterr()
        try:
            getattr(images_search, verb).main([str(w) for w in words], prog_name="likewise", standalone_mode=False)
            code = 0
        except Exception as error:
            code = cli._explain(error)
        return Ran(code, *capsys.readouterr())

    return go


MODEL = ("--model", "model.safetensors")


@pytest.fixture
def gallery(run: Go) -> Path:
    ran = run("index", "photos", "--out", "gallery", *MODEL)
    assert ran.code == 0, ran.err
    assert "24 pictures, patches, flat" in ran.out
    assert "24 added" in ran.out
    return Path("gallery")


def test_embed_writes_rows_and_names(run: Go) -> None:
    Path("photos/torn.png").write_bytes(Path("photos/kind0/p0.png").read_bytes()[:60])
    ran = run("embed", "photos", "--out", "rows.npz", *MODEL)
    assert ran.code == 0, ran.err
    assert "24 × 12 rows of patches in rows.npz" in ran.out
    assert "1 unreadable picture left out" in ran.err
    assert "torn.png" in ran.err
    arrays = media.load_arrays("rows.npz")
    assert arrays["rows"].shape == (24, 12)
    assert "kind0/p0.png" in arrays["names"]
    ran = run("embed", "photos", "--out", "rows.npy", *MODEL, "--json")
    assert (ran.json["rows"], ran.json["dim"], len(ran.json["skipped"])) == (24, 12, 1)
    assert Path("rows.json").exists()


def test_index_again_brings_the_gallery_up_to_date(run: Go, gallery: Path) -> None:
    paint(Path("photos/new.png"), 77)
    Path("photos/kind0/p0.png").unlink()
    ran = run("index", "photos", "--out", gallery, *MODEL, "--json")
    assert [ran.json[n] for n in ("added", "updated", "unchanged", "pruned", "pictures")] == [1, 0, 23, 0, 25]
    ran = run("index", "photos", "--out", gallery, "--prune", "--check", "--json")
    assert [ran.json[n] for n in ("added", "pruned", "pictures")] == [0, 1, 24], "its own model is in the gallery"
    assert ran.json["kind"] == "flat"
    assert ran.json["digest"] == "d1"


def test_index_says_what_recall_was_measured(run: Go, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.images.stores.indexes.LEAST_ROWS", 20)
    ran = run("index", "photos", "--out", "g", *MODEL, "--kind", "hnsw", "--recall", "0.9")
    assert ran.code == 0, ran.err
    assert "24 pictures, patches, hnsw" in ran.out
    assert "recall@10" in ran.out
    assert "on 3 pictures that the index had not seen" in ran.out


def test_index_check_fails_on_damage(run: Go, gallery: Path) -> None:
    file = next(gallery.glob("segment-*.npy"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    ran = run("index", "photos", "--out", gallery, "--check")
    assert ran.code == 2
    assert "damaged" in ran.err


def test_search_prints_the_ranking(run: Go, gallery: Path) -> None:
    query = paint(Path("query.png"), 99)
    want = brute(Patches(), query, sorted(Path("photos").rglob("*.png")), 5)
    ran = run("search", query, "--gallery", gallery, "-k", 5)
    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert lines == [[str(i), f"{d:.4f}", str(Path(p).relative_to("photos"))] for i, (p, d) in enumerate(want, 1)]


def test_search_gives_json_and_a_picture(run: Go, gallery: Path) -> None:
    ran = run(
        "search", "photos/kind0/p0.png", "photos/kind2", "--gallery", gallery, "-k", 3, "--json", "--out", "r.png"
    )
    assert ran.code == 0, ran.err
    assert len(ran.json["queries"]) == 7
    assert ran.json["queries"][0]["hits"][0] == {
        "path": str(Path("photos/kind0/p0.png").absolute()),
        "distance": 0.0,
        "rank": 1,
    }
    assert media.read_array("r.png").std() > 10
    assert json.dumps(ran.json, allow_nan=False)


def test_search_filters(run: Go, gallery: Path) -> None:
    ran = run("search", "photos/kind0/p0.png", "--gallery", gallery, "--label", "kind1", "--json")
    assert {Path(h["path"]).parent.name for h in ran.json["queries"][0]["hits"]} == {"kind1"}
    ran = run("search", "photos/kind0/p0.png", "--gallery", gallery, "--under", "photos/deep", "--json", "-k", 20)
    assert len(ran.json["queries"][0]["hits"]) == 12
    ran = run("search", "photos/kind0/p0.png", "--gallery", gallery, "--label", "knd1")
    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'kind1'?" in ran.err


def test_search_draws_what_is_still_there(run: Go, gallery: Path) -> None:
    Path("photos/kind0/p1.png").unlink()
    assert run("search", "photos/kind0/p0.png", "--gallery", gallery, "-k", 24, "--out", "r.png").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "none.png", "--gallery", "gallery"), "none.png: no such file"),
        (("search", "photos/kind0/p0.png", "--gallery", "photos"), "holds no gallery"),
        (("search", "photos/kind0/p0.png", "--gallery", "gallery", "--out", "r.xyz"), "ends in .png"),
        (("search", "photos/kind0/p0.png", "--gallery", "gallery", "--model", "other.safetensors"), "another model"),
        (("index", "none", "--out", "g2", *MODEL), "not a folder"),
        (("index", "photos", "--out", "photos/kind0", *MODEL), "holds something else"),
        (("index", "photos", "--out", "g2", "--model", "none"), "none does not exist"),
        (("embed", "photos", "--out", "rows.txt", *MODEL), "ends in .npz or .npy"),
        (("embed", "photos", "--out", "rows.npz", *MODEL, "--executor", "spark"), "executor: expected"),
    ],
)
def test_what_is_wrong_is_one_line(run: Go, gallery: Path, words: tuple[str, ...], said: str) -> None:
    lw.save(Patches(digest="d2"), "other.safetensors")
    ran = run(*words)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) == 1
    assert ran.out == ""


def test_a_gallery_on_milvus_takes_the_same_commands(run: Go, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite", reason="pip install 'likewise[test]'")
    from milvus_lite.server_manager import server_manager_instance

    place = f"milvus://{tmp_path}/store.db/photos"
    try:
        assert run("index", "photos", "--out", place, *MODEL, "--json").json["added"] == 24
        assert run("index", "photos", "--out", place, *MODEL, "--json").json["unchanged"] == 24
        ran = run("search", "photos/kind0/p0.png", "--gallery", place, *MODEL, "-k", 2, "--json")
        assert ran.json["kind"] == "milvus flat"
        here = Gallery.build(Patches(), "photos", "g").search("photos/kind0/p0.png", 2)
        assert ran.json["queries"][0]["hits"] == [vars(h) for h in here]
    finally:
        server_manager_instance.release_all()


def test_the_module_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = "('torch', 'PIL', 'faiss', 'pymilvus', 'sklearn', 'matplotlib')"
    code = f"import sys, likewise.cli.images_search; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = code.replace("likewise.cli.images_search", "likewise.images.gallery, likewise.images.stores.milvus")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_of_the_command_are_the_models(run: Go) -> None:
    run("embed", "photos/kind0", "--out", "rows.npy", *MODEL)
    rows = np.load("rows.npy", allow_pickle=False)
    np.testing.assert_array_equal(rows, Patches().embed("photos/kind0"))
