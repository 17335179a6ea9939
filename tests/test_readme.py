"""Every block of the README and of the docs runs as printed, or is listed with the reason; what they name exists."""

from __future__ import annotations

import contextlib
import importlib
import re
import shlex
import subprocess
from pathlib import Path

import click
import numpy as np
import pytest

from likewise import cli, media, samples
from worlds.layouts import video
from worlds.scenes import hpatches

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
QUICK = ("README.md", "index.md")
"""Pages whose Python runs in the fast lane."""

NOT_RUN = {
    "git clone": "needs the address of the repository",
    "make demo": "downloads packages into a virtual environment of its own",
    "pip install": "downloads packages",
    "torchrun": "starts processes that train together; tests/images/test_training.py does so",
    "likewise studio": "a server that runs until it is ended; tests/studio and tests/browser start it",
    "URL=": "needs such a server; tests/studio/test_api.py runs the line",
    "curl -sS": "asks such a server; tests/studio/test_api.py runs the lines",
    "docker ": "needs Docker; tests/test_docker.py reads the Dockerfile",
    "likewise demo": "a minute of work; tests/cli/test_demo.py runs it with fewer pictures",
    "likewise pixels sfm photos/": "needs photos of one place from many spots; tests/pixels/test_sfm.py renders some",
    "likewise pixels train photos/ --scenes": "needs what `likewise pixels sfm` leaves; tests/pixels trains on such",
    "likewise weights fetch": "downloads; tests/nn/test_published.py does so from this machine",
    "likewise weights add": "needs a file of published weights; tests/cli/test_weights.py has one",
    "likewise distributions harvest ffhq.pkl": "needs a snapshot; tests/cli/test_distributions.py makes one",
    "likewise distributions harvest dcgan.pth": "needs weights; tests/cli/test_distributions.py makes some",
    "likewise distributions sweep bank/ ffhq.pkl": "needs a snapshot and the weights of Inception",
    "likewise pixels localize": "needs what `likewise pixels sfm` leaves; tests/pixels/test_localize.py has one",
}
"""Lines that begin so are not run, and why."""

SHORTER = {
    "likewise pixels train photos/ --out run/": "--steps 1 --network cells --evaluate-every 0",
    "likewise images train birds/ --out run/": "--steps 2 --size 64 --classes 2",
}
"""Lines that begin so are run with these flags after them: what they do is the same, only less of it."""


def blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in these languages."""
    wanted = "|".join(languages)
    return re.findall(rf"^```(?:{wanted})\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def lines_of(page: Path) -> list[str]:
    """The lines of a page's shell blocks, without their comments."""
    result = [line.strip() for block in blocks(page, "sh") for line in block.splitlines()]
    return [re.split(r"\s+# ", line)[0] for line in result if line and not line.startswith("#")]


# ── languages ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_is_of_a_language_that_is_run_or_only_read(page: Path) -> None:
    """Python and shell are run; text is formulas and what is printed; braces are Sphinx's own."""
    heads = re.findall(r"^```([^\n]*)\n.*?^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [h for h in heads if h not in ("python", "sh", "text") and not h.startswith("{")] == []


# ── Python ────────────────────────────────────────────────────────────────────────────────────────────────────────


def python_pages() -> list[object]:
    result = [p for p in PAGES if blocks(p, "python")]
    return [pytest.param(p, id=p.name, marks=[] if p.name in QUICK else [pytest.mark.slow]) for p in result]


@pytest.mark.parametrize("page", python_pages())
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(samples, "PLACES", 1)
    names: dict[str, object] = {}
    for k, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, block {k + 1}", "exec"), names)
    if page.name == "README.md":
        _check_what_the_readme_prints(capsys.readouterr().out)


def _check_what_the_readme_prints(printed: str) -> None:
    found, copies = printed.splitlines()
    assert re.fullmatch(r"day.jpg same Evidence\(\d+ of \d+ matches are inliers of one \w+\)", found)
    assert copies == "['keep', 'turned by 90°', 'mirrored']"
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in ("why.png", "aligned.png"))


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────


def reason(line: str) -> str | None:
    """Why a line is not run; None where it is."""
    return next((why for start, why in NOT_RUN.items() if line.startswith(start)), None)


def shell_pages() -> list[Path]:
    return [p for p in PAGES if any(reason(line) is None for line in lines_of(p))]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_line_is_run_or_listed(page: Path) -> None:
    """What is run is a command of likewise, or the one line that writes to ~/.bashrc."""
    for line in lines_of(page):
        known = line.startswith("likewise ") or "likewise completion" in line
        assert reason(line) is not None or known, f"{page.name}: {line!r} is neither run nor listed in NOT_RUN"


def test_every_reason_and_every_shortening_is_of_some_line() -> None:
    every = [line for page in PAGES for line in lines_of(page)]
    for start in (*NOT_RUN, *SHORTER):
        assert any(line.startswith(start) for line in every), f"{start}: no page says so"


def test_a_line_that_is_not_listed_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\n# a remark\nlikewise demo   # a minute\ncurl somewhere\n```\n", encoding="utf-8")
    assert lines_of(page) == ["likewise demo", "curl somewhere"]
    with pytest.raises(AssertionError, match="neither run nor listed"):
        test_every_line_is_run_or_listed(page)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", shell_pages(), ids=lambda p: p.name)
def test_the_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pasted one after the other, in a folder that has what they name."""
    monkeypatch.chdir(tmp_path)
    furnish(" ".join(lines_of(page)))
    wrong = []
    for line in lines_of(page):
        if reason(line) is None:
            said = run(line, tmp_path, capsys)
            wrong += [f"{line}\n    {said}"] if said else []
    assert not wrong, "\n".join(wrong)


def run(line: str, home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a line; what it said where it failed, else nothing."""
    if not line.startswith("likewise "):
        done = subprocess.run(["bash", "-c", line], env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, check=False)
        return "" if done.returncode == 0 and (home / ".bashrc").read_text() else f"exit {done.returncode}"
    more = next((flags for start, flags in SHORTER.items() if line.startswith(start)), "")
    capsys.readouterr()
    code = cli.main([*shlex.split(line), *shlex.split(more)][1:])
    out, err = capsys.readouterr()
    return "" if code == 0 and out.strip() else f"exit {code}: {err.strip()[-600:] or 'it said nothing'}"


MINE = """
import torch
from likewise.distributions import Generator, Normal

torch.manual_seed(0)
parts = torch.nn.Linear(4, 48), torch.nn.Tanh(), torch.nn.Unflatten(1, (3, 4, 4)), torch.nn.Upsample(scale_factor=4)
net = torch.nn.Sequential(*parts)
generator = Generator(lambda z: (net(z) + 1) / 2, Normal(4), name="mine")
"""


def furnish(words: str) -> None:
    """The files and folders that commands name: photos, albums, a clip, a program."""
    draw = np.random.default_rng(0)
    for name, picture in zip(("day.jpg", "night.jpg"), samples.pair(), strict=True):
        media.write_image(name, picture)
    for name in ("query.jpg", "other.jpg", "a.jpg", "b.jpg"):
        media.write_image(name, samples.view(samples.photograph("cat"), draw))
    few = {"cat": 3, "coffee": 2, "flower": 2, "temple": 2}
    for folder in ("photos", "photos-a", "photos-b", "monday", "friday", "album-a", "album-b"):
        if re.search(rf"\b{folder}/", words):
            samples.album(Path(folder), few, draw)
    if "photos/one.jpg" in words:
        media.write_image("photos/one.jpg", samples.photograph("cat"))
    for folder, names in (("birds", samples.names()[:8]), ("new-birds", samples.names()[8:11])):
        if re.search(rf"\b{folder}/", words):
            for name in names:
                samples.album(Path(folder) / name, {name: 6}, draw)
    if "albums/" in words:
        for name in ("cat", "coffee", "temple"):
            for number in range(4):
                samples.album(Path("albums") / name / str(number), {name: 2}, draw)
    if "hpatches/" in words:
        hpatches(Path("hpatches"))
    if "clip.mp4" in words:
        video(Path("clip.mp4"), frames=3)
    with contextlib.suppress(FileExistsError), Path("mine.py").open("x") as program:
        program.write(MINE)


def command_lines() -> list[str]:
    return sorted({line for page in PAGES for line in lines_of(page) if line.startswith("likewise ")})


@pytest.mark.parametrize("line", command_lines())
def test_the_commands_of_a_page_exist(line: str) -> None:
    result: click.Command | None = cli.command
    for word in line.split()[1:]:
        if not isinstance(result, click.Group):
            break
        result = result.get_command(click.Context(result), word)
        assert result is not None, f"{line}: likewise has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_pictures_of_a_page_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_of_the_library_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for dotted in re.findall(r"`(likewise(?:\.\w+)+)`", text) + re.findall(r"`lw((?:\.\w+)+)", text):
        _resolve(dotted if dotted.startswith("likewise") else "likewise" + dotted)


def _resolve(dotted: str) -> object:
    """A dotted name, as a module or as what a module holds."""
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        home, _, name = dotted.rpartition(".")
        return getattr(_resolve(home), name)


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        _resolve("likewise.numeric.no_such_thing")


def test_every_target_that_a_page_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"`?\bmake ([a-z-]+)`", page.read_text(encoding="utf-8")):
            assert target in targets, f"{page.name}: make {target}"
