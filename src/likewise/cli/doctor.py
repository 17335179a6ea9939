"""`likewise doctor`: is this installation sound? Versions, threads, extras, folders, caches and a short self-test."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import click

State = Literal["ok", "note", "broken"]
_SIGNS = {"ok": ("✓", "green"), "note": ("·", "yellow"), "broken": ("✗", "red")}


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    part: str
    name: str
    state: State
    detail: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check this installation: versions, threads, extras, folders, caches, a self-test of a few seconds.

    Exit 1 if something is broken; a missing extra is only noted.
    """
    findings = examine()
    broken = [f for f in findings if f.state == "broken"]
    if as_json:
        click.echo(json.dumps({"sound": not broken, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings)
        click.echo(f"\n{len(broken)} broken" if broken else "\neverything works")
    ctx.exit(1 if broken else 0)


def examine() -> list[Finding]:
    """Everything the doctor looks at."""
    findings = [*_versions(), *_threads(), *_extras(), *_folders()]
    for name, test in SELF_TESTS.items():
        findings.append(_try(name, test))
    return findings


def _print(findings: list[Finding]) -> None:
    width = max(len(f.name) for f in findings)
    part = None
    for f in findings:
        if f.part != part:
            part = f.part
            click.secho(part, bold=True)
        sign, colour = _SIGNS[f.state]
        click.echo(f"  {click.style(sign, fg=colour)} {f.name:<{width}}  {f.detail}")


def _versions() -> list[Finding]:
    """likewise, Python and each dependency, read from the installed metadata (nothing is imported)."""
    system = f"{platform.system()} {platform.machine()}"
    found = [Finding("versions", "Python", "ok", f"{platform.python_version()} on {system}")]
    found.append(_version("likewise", ""))
    for requirement in metadata.requires("likewise") or []:
        if "extra ==" not in requirement:
            found.append(_version(_package(requirement), requirement))
    return found


def _version(package: str, requirement: str) -> Finding:
    try:
        return Finding("versions", package, "ok", metadata.version(package))
    except metadata.PackageNotFoundError:
        return Finding("versions", package, "broken", f"not installed; pip install '{requirement or package}'")


def _package(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]


def _threads() -> list[Finding]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = [f"{v}={os.environ[v]}" for v in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if v in os.environ]
    said = ", ".join(limits) or "no limit set (OMP_NUM_THREADS)"
    return [Finding("threads", "processors", "ok", f"{usable} usable of {os.cpu_count()}; {said}")]


def _extras() -> list[Finding]:
    """The optional groups of dependencies: which are complete."""
    wanted: dict[str, list[str]] = {}
    for requirement in metadata.requires("likewise") or []:
        match = re.search(r"extra == ['\"]([\w-]+)['\"]", requirement)
        if match and "likewise[" not in requirement:
            wanted.setdefault(match[1], []).append(_package(requirement))
    return [_extra(name, packages) for name, packages in sorted(wanted.items())]


def _extra(name: str, packages: list[str]) -> Finding:
    missing = [p for p in packages if not _installed(p)]
    if not missing:
        return Finding("extras", name, "ok", ", ".join(packages))
    return Finding("extras", name, "note", f"without {', '.join(missing)}; pip install 'likewise[{name}]'")


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _folders() -> list[Finding]:
    return [_data_folder(), _cache_folder(), _numba_cache()]


def _data_folder() -> Finding:
    said = os.environ.get("LIKEWISE_DATA")
    if not said:
        return Finding("folders", "data", "note", "LIKEWISE_DATA is not set: only needed for benchmarks on real data")
    path = Path(said)
    if not path.is_dir():
        return Finding("folders", "data", "broken", f"LIKEWISE_DATA={said} is not a folder")
    inside = sorted(p.name for p in path.iterdir() if p.is_dir())
    return Finding("folders", "data", "ok", f"{path} ({', '.join(inside) or 'empty'})")


def _cache_folder() -> Finding:
    """The cache folder must take a file: kernels are kept there."""
    import tempfile

    from likewise.media import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("folders", "cache", "broken", f"{folder} cannot be written: {error.strerror}")
    return Finding("folders", "cache", "ok", str(folder))


def _numba_cache() -> Finding:
    from likewise.media import cache_folder

    kept = list((cache_folder() / "numba").rglob("*.nbc"))
    if not kept:
        return Finding("folders", "compiled kernels", "note", "none yet: the first call compiles them, once")
    size = sum(f.stat().st_size for f in kept) / 1e6
    return Finding("folders", "compiled kernels", "ok", f"{len(kept)} kept, {size:.1f} MB")


def _try(name: str, test: Callable[[], str | None]) -> Finding:
    """Run one self-test: it returns None, or what is wrong."""
    began = time.perf_counter()
    try:
        wrong = test()
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    if wrong:
        return Finding("self-test", name, "broken", wrong)
    return Finding("self-test", name, "ok", f"{seconds:.2f} s")


def _smoothed_tends_to_exact() -> str | None:
    """At γ = 0.002 median the smoothed plan has its marginals and costs at most 1 % more than the exact optimum."""
    import numpy as np

    from likewise import numeric
    from likewise.sets.transport import solvers as transport
    from likewise.types import Signature

    draw = np.random.default_rng(0)
    p, q = (Signature(draw.normal(size=(m, 3)), draw.uniform(0.5, 1.5, m)) for m in (6, 9))
    X, Y = transport.pack([p]), transport.pack([q])
    C = numeric.squared_distances(p.points, q.points)
    best, _ = transport.exact(C, p.weights, q.weights)
    one = np.zeros(1, dtype=np.int64)
    solved = transport.solve_pairs(X, Y, one, one, 0.002 * float(np.median(C)), value="sharp", plans=True)
    F = solved.plan(0)
    off = float(np.abs(F.sum(1) - p.weights).sum() + np.abs(F.sum(0) - q.weights).sum())
    if off > 1e-5:
        return f"marginals of the smoothed plan are off by {off:.1e}; expected at most 1e-5"
    value = float((C * F).sum())
    if not best - off * float(C.max()) <= value <= 1.01 * best:
        return f"smoothed transport costs {value:.6g} where exact transport costs {best:.6g}"
    return None


def _one_point_is_mahalanobis() -> str | None:
    """Between sets of one point every smoothed distance is the squared distance, exactly."""
    import numpy as np

    from likewise.sets.transport import solvers as transport
    from likewise.types import Signature

    X, Y = transport.pack([Signature([[0.0, 0.0]])]), transport.pack([Signature([[3.0, 4.0]])])
    one = np.zeros(1, dtype=np.int64)
    value = float(transport.solve_pairs(X, Y, one, one, 0.7).value[0])
    return None if abs(value - 25.0) < 1e-9 else f"W of two points 5 apart is {value:.12g}; expected 25"


def _picture_survives_a_file() -> str | None:
    """A PNG that is written and read again has the same pixels."""
    import tempfile

    import numpy as np
    from PIL import Image

    from likewise.media import read

    pixels = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    with tempfile.TemporaryDirectory() as folder:
        Image.fromarray(pixels).save(Path(folder) / "a.png")
        back = np.asarray(read(Path(folder) / "a.png")).transpose(1, 2, 0)
    off = float(np.abs(back * 255 - pixels).max())
    return None if off < 0.01 else f"a pixel came back off by {off:.3g} of 255"


def _torch_computes() -> str | None:
    """Torch multiplies as NumPy does, and differentiates."""
    import numpy as np
    import torch

    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    (slope,) = torch.autograd.grad((x @ x.T).trace(), x)
    off = float(np.abs(slope.numpy() - 2 * x.detach().numpy()).max())
    return None if off < 1e-12 else f"the gradient of ‖x‖² is off by {off:.1e}"


SELF_TESTS: dict[str, Callable[[], str | None]] = {
    "smoothed transport against exact": _smoothed_tends_to_exact,
    "sets of one point": _one_point_is_mahalanobis,
    "a picture through a file": _picture_survives_a_file,
    "torch": _torch_computes,
}
