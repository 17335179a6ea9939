"""`likewise images embed`: what comes in, what goes out, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise import cli, media
from likewise.cli import images_search
from likewise.store import checkpoint
from worlds.command import Ran
from worlds.galleries import Patches, album

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
    ran = run("embed", "photos", "--out", "rows.npz", *MODEL, "--json")
    assert (ran.json["rows"], ran.json["dim"], len(ran.json["skipped"])) == (24, 12, 1)


def test_the_module_imports_nothing_heavy() -> None:
    import subprocess
    import sys

    heavy = "('torch', 'PIL', 'faiss', 'pymilvus', 'sklearn', 'matplotlib')"
    code = f"import sys, likewise.cli.images_search; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_rows_of_the_command_are_the_models(run: Go) -> None:
    run("embed", "photos/kind0", "--out", "rows.npz", *MODEL)
    rows = np.load("rows.npz", allow_pickle=False)["rows"]
    np.testing.assert_array_equal(rows, Patches().embed("photos/kind0"))
