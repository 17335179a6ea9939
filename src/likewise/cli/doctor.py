"""`likewise doctor` and `likewise weights`: is this installation sound, and are the weights that ship whole?"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import json_flag
from likewise.errors import FileError

State = Literal["ok", "note", "broken"]
_SIGNS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "broken": ("✗", "red")}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str
    name: str
    state: State
    detail: str


@click.command(cls=Command)
@json_flag
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this installation: versions, threads, extras, folders, caches, a self-test of a few seconds.

    Exit 1 if something is broken; a missing extra is only noted.

    \b
    likewise doctor
    likewise doctor --json
    """
    findings = [*_versions(), *_threads(), *_extras(), *_folders(), *(_try(*test) for test in SELF_TESTS.items())]
    broken = [f for f in findings if f.state == "broken"]
    if as_json:
        click.echo(json.dumps({"sound": not broken, "findings": [asdict(f) for f in findings]}, indent=2))
        ctx.exit(1 if broken else 0)
    width = max(len(f.name) for f in findings)
    for i, f in enumerate(findings):
        if i == 0 or f.part != findings[i - 1].part:
            click.secho(f.part, bold=True)
        sign, colour = _SIGNS[f.state]
        click.echo(f"  {click.style(sign, fg=colour)} {f.name:<{width}}  {f.detail}")
    click.echo(f"\n{len(broken)} broken" if broken else "\neverything works")
    ctx.exit(1 if broken else 0)


def _versions() -> Iterator[Finding]:
    """likewise, Python and each dependency, read from the installed metadata (nothing is imported)."""
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("versions", "Python", "ok", f"{platform.python_version()} on {system}")
    for requirement in ["likewise", *(metadata.requires("likewise") or [])]:
        if "extra ==" not in requirement:
            name, version = _package(requirement), _version(_package(requirement))
            detail = version or f"not installed; pip install '{requirement}'"
            yield Finding("versions", name, "ok" if version else "broken", detail)


def _package(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _threads() -> Iterator[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = [f"{v}={os.environ[v]}" for v in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if v in os.environ]
    limit = ", ".join(limits) or "no limit set (OMP_NUM_THREADS)"
    yield Finding("threads", "processors", "ok", f"{usable} usable of {os.cpu_count()}; {limit}")


def _extras() -> Iterator[Finding]:
    """The optional groups of dependencies: which are complete."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires("likewise") or []:
        match = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if match and "likewise[" not in requirement:
            wanted.setdefault(match[1], []).append(_package(requirement))
    for name, packages in sorted(wanted.items()):
        missing = [p for p in packages if _version(p) is None]
        lacks = f"without {', '.join(missing)}; pip install 'likewise[{name}]'"
        yield Finding("extras", name, "note" if missing else "ok", lacks if missing else ", ".join(packages))


def _folders() -> Iterator[Finding]:
    """The data that benchmarks read, the cache, and the compiled kernels in it."""
    from likewise.media import cache_folder

    data, cache = os.environ.get("LIKEWISE_DATA"), cache_folder()
    if not data:
        yield Finding("folders", "data", "note", "LIKEWISE_DATA is not set: only `likewise papers` reads it")
    elif not Path(data).is_dir():
        yield Finding("folders", "data", "broken", f"LIKEWISE_DATA={data} is not a folder")
    else:
        inside = sorted(p.name for p in Path(data).iterdir() if p.is_dir())
        yield Finding("folders", "data", "ok", f"{data} ({', '.join(inside) or 'empty'})")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=cache):
            yield Finding("folders", "cache", "ok", str(cache))
    except OSError as error:
        yield Finding("folders", "cache", "broken", f"{cache} cannot be written: {error.strerror}")
    kept = [f.stat().st_size for f in (cache / "numba").rglob("*.nbc")]
    size = f"{len(kept)} kept, {sum(kept) / 1e6:.1f} MB" if kept else "none yet: the first call compiles them, once"
    yield Finding("folders", "compiled kernels", "ok" if kept else "note", size)


def _try(name: str, test: Callable[[], str | None]) -> Finding:
    """Run one self-test: it returns None, or what is wrong."""
    began = time.perf_counter()
    try:
        wrong = test()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    seconds = f"{time.perf_counter() - began:.2f} s"
    return Finding("self-test", name, "broken" if wrong else "ok", wrong or seconds)


def _smoothed_tends_to_exact() -> str | None:
    """At a small γ the smoothed plan costs at most 1 % more than the exact optimum."""
    import numpy as np

    from likewise.sets import compare
    from likewise.sets.transport.solvers import exact

    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(6, 3)), draw.normal(size=(9, 3))
    C = ((x[:, None] - y[None]) ** 2).sum(axis=2)
    best, _ = exact(C, np.full(6, 1 / 6), np.full(9, 1 / 9))
    value = compare(x, y, gamma=0.002 * float(np.median(C)), value="sharp").distance
    right = (1 - 1e-6) * best <= value <= 1.01 * best
    return None if right else f"smoothed transport costs {value:.6g} where exact transport costs {best:.6g}"


def _image_survives_a_file() -> str | None:
    """A PNG that is written and read again has the same pixels."""
    import numpy as np

    from likewise.media import read, write_image

    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    with tempfile.TemporaryDirectory() as folder:
        back = np.asarray(read(write_image(Path(folder) / "a.png", pixels))).transpose(1, 2, 0)
    off = float(np.abs(back * 255 - pixels).max())
    return None if off < 0.01 else f"a pixel came back off by {off:.3g} of 255"


SELF_TESTS: dict[str, Callable[[], str | None]] = {
    "smoothed transport against exact": _smoothed_tends_to_exact,
    "an image through a file": _image_survives_a_file,
}


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("list", cls=Command)
@json_flag
def list_weights(as_json: bool) -> None:
    """List the weights that come with likewise: what each is for, its licence and its size.

    \b
    likewise weights list
    """
    cards = _cards()
    rows = terminal.columns([(card["name"], f"{card['bytes'] / 1e6:.2f} MB") for card in cards])
    lines = [f"{row}  {card['about']}" for row, card in zip(rows, cards, strict=True)]
    terminal.result("\n".join(lines), {"weights": cards}, as_json)


@click.command("check", cls=Command)
@json_flag
def check_weights(as_json: bool) -> None:
    """Compare every file of weights with the SHA-256 on its card; exit 2 where one differs.

    \b
    likewise weights check
    """
    cards = _cards()
    for card in cards:
        if card["sha256"] != card["expected"]:
            raise FileError(
                f"{card['file']}: SHA-256 {card['sha256'][:12]}… is not that of its card, {card['expected'][:12]}…; "
                "install likewise again"
            )
    terminal.result(f"{len(cards)} files are what their cards say", {"weights": cards}, as_json)


def _cards() -> list[dict[str, Any]]:
    """What the model cards say, and the size and digest of the file beside each."""
    folder = Path(str(resources.files("likewise") / "weights"))
    cards = []
    for card in sorted(folder.glob("*.md")):
        text = card.read_text(encoding="utf-8")
        file = next(f for f in sorted(folder.glob(f"{card.stem}.*")) if f.suffix != ".md")
        data = file.read_bytes()
        said = re.search(r"\*\*SHA-256\.\*\* `([0-9a-f]{64})`", text)
        licence = re.search(r"\*\*Licence\.\*\* (.+?)(?=\n\*\*|\n<!--|\Z)", text, re.S)
        found = {"name": card.stem, "about": text.splitlines()[0].partition(": ")[2], "file": str(file)}
        found |= {"sha256": hashlib.sha256(data).hexdigest(), "expected": said[1] if said else ""}
        licence_words = " ".join(licence[1].split()) if licence else ""
        cards.append({**found, "bytes": len(data), "licence": licence_words})
    return cards
