"""`likewise index` and `likewise search`, as typed; and a kill at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likewise import samples
from likewise.cli import main
from likewise.media import write_image
from likewise.search import Collection
from worlds.command import Runner


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in samples.names()[:5]:
        write_image(folder / name / "1.jpg", samples.photograph(name)[::2, ::2])
    write_image(folder / "again.jpg", samples.photograph(samples.names()[0])[::2, ::2], quality=60)
    return folder


@pytest.fixture(scope="module")
def home(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `likewise index` has been typed."""
    folder = tmp_path_factory.mktemp("home")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["index", str(photos)]) == 0
    finally:
        os.chdir(before)
    return folder


def test_index_then_search_with_nothing_else_said(run: Runner, home: Path, photos: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(home)
    lines = run.good("search", photos / samples.names()[2] / "1.jpg", "-k", 2, "--verify", 1).out.splitlines()
    assert lines[1].split() == ["rank", "verdict", "distance", "alike", "inliers", "photo"]
    assert lines[2].split()[:2] == ["1", "same"]
    assert lines[2].endswith(f"{samples.names()[2]}/1.jpg")
    assert len(lines) == 4


def test_again_brings_it_up_to_date_and_json_says_how(run: Runner, home: Path, photos: Path) -> None:
    said = run.good("index", photos, "--out", home / "likewise-index", "--json", "--check").json
    assert (said["added"], said["unchanged"], said["removed"]) == (0, 6, 0)


def test_json_page_and_several_shots(run: Runner, home: Path, photos: Path) -> None:
    place = ("--index", home / "likewise-index", "-k", 3, "--verify", 1, "--json")
    two = [str(photos / n / "1.jpg") for n in samples.names()[1:3]]
    said = run.good("search", *two, *place, "--out", "p.html").json
    assert said["query"] == two
    assert {Path(h["path"]).parent.name for h in said["hits"][:2]} == set(samples.names()[1:3])
    assert {h["shot"] for h in said["hits"][:2]} == {0, 1}
    assert Path("p.html").stat().st_size > 10_000
    assert len(run.good("search", *two, *place, "--each").json["queries"]) == 2


def test_others_leaves_the_query_out(run: Runner, home: Path, photos: Path) -> None:
    place = ("--index", home / "likewise-index", "-k", 2, "--verify", 0, "--json")
    asked = photos / samples.names()[2] / "1.jpg"
    for words, first in (((), True), (("--others",), False)):
        hits = run.good("search", asked, *place, *words).json["hits"]
        assert ((Path(hits[0]["path"]) == asked), len(hits)) == (first, 2)


def test_duplicates(run: Runner, home: Path) -> None:
    groups = run.good("search", "--duplicates", "--index", home / "likewise-index", "--json").json["groups"]
    assert [[(Path(c["path"]).name, c["what"]) for c in g["copies"]] for g in groups] == [
        [("1.jpg", "keep"), ("again.jpg", "saved again")]
    ]
    assert groups[0]["keep"] == groups[0]["copies"][0]["path"]
    said = run.good("search", "--duplicates", "--index", home / "likewise-index", "--out", "groups.csv").out
    assert said.splitlines()[:2] == ["1 groups of copies among 6 photos", "group 1"]
    assert "saved again" in said.splitlines()[3]
    assert len(Path("groups.csv").read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["search", "q.jpg"], "no index here; make one with `likewise index FOLDER`"),
        (["search"], "query: expected a photo or a video"),
        (["search", "q.jpg", "--duplicates"], "query: --duplicates takes none"),
        (["search", "q.jpg", "--out", "p.gif"], "out: expected a name that ends in .html"),
        (["search", "--duplicates", "--out", "p.html"], "out: --duplicates draws nothing"),
        (["search", "q.jpg", "r.jpg", "--each", "--out", "p.png"], "out: a figure shows one query"),
        (["index", "nowhere"], "not a folder"),
        (["index", "{home}", "--out", "i", "--executor", "spark"], "executor: expected None"),
        (["search", "torn.jpg", "--index", "{home}/likewise-index"], "torn.jpg"),
        (["search", "notes.txt", "--index", "{home}/likewise-index"], "notes.txt: not a"),
    ],
)
def test_what_is_wrong_is_one_sentence(run: Runner, home: Path, words: list[str], sentence: str) -> None:
    Path("torn.jpg").write_bytes(b"nothing")
    Path("notes.txt").write_text("words")
    run(*(word.format(home=home) for word in words)).refused(sentence)


@pytest.mark.slow
def test_killed_at_random_moments_nothing_indexed_is_lost(photos: Path, tmp_path: Path) -> None:
    """`likewise index` killed again and again: what one run kept the next finds, and the end is the whole."""
    draw = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for i in range(60):
        cut = samples.photograph(samples.names()[i % 8])[i : i + 160, i : i + 160]
        write_image(folder / f"{i:03d}.jpg", cut)
    chunks = "import likewise.images.embedding as e; e.CHUNK = 4"
    script = f"{chunks}; from likewise.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "index", str(folder), "--out", str(tmp_path / "i")]
    kept: set[str] = set()
    for _ in range(8):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(2.0, 6.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if (tmp_path / "i" / "index.sqlite").exists():
            with Collection.open(tmp_path / "i") as result:
                assert result.check() == []
                now = set(result)
                assert kept <= now
                kept = now
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with Collection.open(tmp_path / "i") as result:
        assert len(result) == 60
        assert result.check() == []
