"""`likewise doctor`: is this installation sound?"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

from likewise.cli import Command
from likewise.cli.terminal import json_flag

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
    """The data that benchmarks read, the cache, the compiled kernels in it, and published weights."""
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
    yield _weights()


def _weights() -> Finding:
    """How many published files are here, and whether the folder that is named for them is one."""
    from likewise.nn.download import places
    from likewise.nn.published import ENTRIES

    odd = [p for p in os.environ.get("LIKEWISE_WEIGHTS", "").split(os.pathsep) if p and not os.path.isdir(p)]
    if odd:
        return Finding("folders", "weights", "broken", f"LIKEWISE_WEIGHTS: {odd[0]} is not a folder")
    here = [e.name for e in ENTRIES if places(e)]
    detail = f"{len(here)} of {len(ENTRIES)} published files are here ({', '.join(here) or 'likewise weights list'})"
    return Finding("folders", "weights", "ok" if here else "note", detail)


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
