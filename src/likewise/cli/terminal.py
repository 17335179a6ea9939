"""What commands share: options, models, and what they say: results on stdout, remarks on stderr, JSON in files."""

from __future__ import annotations

import importlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from likewise.errors import FileError, InputError
from likewise.train.options import GroupedOption, add_options

F = TypeVar("F", bound=Callable[..., Any])

DRAWN = (".png", ".svg", ".pdf", ".jpg")
"""How the name of a figure may end that a command draws."""
NAMED = 5
"""How many unreadable images are named on the terminal; the JSON names all."""


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────


def flag(*names: str, group: str | None = None, **attrs: Any) -> Callable[[F], F]:
    """A click option under a heading of --help; a default is shown."""
    return click.option(*names, cls=GroupedOption, group=group, **{"show_default": True, **attrs})


def count(*names: str, least: int = 1, **attrs: Any) -> Callable[[F], F]:
    """An option that is a whole number of at least `least`."""
    return flag(*names, type=click.IntRange(least), **attrs)


def numbers(kind: type[float]) -> Callable[..., list[Any]]:
    """The callback of an option that is numbers with commas between."""

    def read(_: Any, param: click.Parameter, text: str) -> list[Any]:
        try:
            return [kind(word) for word in text.split(",")]
        except ValueError:
            raise InputError(f"{param.name}: expected numbers with commas between, got {text!r}") from None

    return read


json_flag = flag("--json", "as_json", is_flag=True, show_default=False, help="print the result as JSON")
seed_flag = count("--seed", least=0, default=0, help="seed of every draw")
device_flag = flag("--device", default="cpu", help="where the model runs: cpu, cuda, cuda:1, mps …")
resume_flag = flag("--resume/--no-resume", default=True, help="continue what an interrupted run left")


def model_flags(words: str) -> Callable[[F], F]:
    """--model, a file, and --device, where it runs."""
    model = flag("--model", type=click.Path(), help=words)
    return lambda function: model(device_flag(function))


def out_flag(default: str, words: str) -> Callable[[F], F]:
    """--out, a file or a folder."""
    return flag("--out", default=default, type=click.Path(), help=words)


def workers_flags(function: F) -> F:
    """--n-jobs and --executor: where blocks of work run."""
    jobs = flag("--n-jobs", default=1, group="Running", help="processes; -1 is all cores")
    dask = flag("--executor", group="Running", help="dask (a cluster here), or a Dask scheduler's address (tcp://…)")
    return jobs(dask(function))


def cluster_flags(function: F) -> F:
    """--n-jobs, --executor and --resume."""
    return workers_flags(resume_flag(function))


def training_flags(where: str, groups: Mapping[str, Sequence[str]]) -> Callable[[F], F]:
    """--resume, and the options of the configuration at "module:class" under headings, read when they are needed."""

    def read() -> list[click.Parameter]:
        module, _, name = where.partition(":")
        config = getattr(importlib.import_module(module), name)

        def bare() -> None: ...

        for heading, names in reversed(list(groups.items())):
            add_options(config, *names, group=heading)(bare)
        params: list[click.Parameter] = vars(bare)["__click_params__"]
        return params[::-1]

    def decorate(function: F) -> F:
        vars(function)["read_options"] = read
        return resume_flag(function)

    return decorate


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────────────


def move(model: Any, device: str) -> Any:
    """The model on a device; an InputError where it cannot be moved."""
    if device == "cpu":
        return model
    if not hasattr(model, "to"):
        raise InputError(f"device: {getattr(model, 'name', type(model).__name__)} runs on the CPU only, got {device!r}")
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device: {device} cannot be used: {str(error).splitlines()[0]}") from None


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def quote(name: Any) -> str:
    """A name that fits on a line: control characters and bytes of no encoding are escaped."""
    text = str(name)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def result(lines: str | Sequence[str], record: Mapping[str, Any], as_json: bool) -> None:
    """The result on stdout: a line or several for people, or the record as JSON."""
    click.echo(_json(record) if as_json else "\n".join(map(quote, [lines] if isinstance(lines, str) else lines)))


def remark(text: str) -> None:
    """A line on stderr for somebody who watches; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        print(quote(text), file=sys.stderr)


def warn(text: str) -> None:
    """A line on stderr that must be seen."""
    print(f"likewise: {quote(text)}", file=sys.stderr)


def tell_left_out(skipped: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Say on stderr which images could not be read, each with the reason; the same for a record."""
    if skipped:
        warn(f"{len(skipped)} unreadable image{'s' if len(skipped) > 1 else ''} left out:")
    for name, reason in skipped[:NAMED]:
        print(f"  {quote(reason if reason.startswith(name) else f'{name}: {reason}')}", file=sys.stderr)
    if len(skipped) > NAMED:
        print(f"  and {len(skipped) - NAMED} more", file=sys.stderr)
    return [{"name": name, "reason": reason} for name, reason in skipped]


def labels_of(a: str, b: str) -> tuple[str, str]:
    """What to call two paths: their last names, and as many folders before as tell them apart."""
    left, right = Path(a).absolute().parts, Path(b).absolute().parts
    n = next((n for n in range(1, 4) if left[-n:] != right[-n:]), 1)
    one, two = (quote("/".join(parts[-n:])) for parts in (left, right))
    return one if len(one) <= 28 else "…" + one[-27:], two if len(two) <= 28 else "…" + two[-27:]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Cells in columns: the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    pad = [str.ljust, *[str.rjust] * len(widths)]
    return ["  ".join(p(c, w) for p, c, w in zip(pad, row, widths, strict=False)).rstrip() for row in rows]


def cell(value: Any) -> str:
    """A value of a table: four digits of a fraction, a dash where there is none."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@contextmanager
def working(words: str) -> Iterator[Callable[[str], None]]:
    """Something turns on stderr while a step of unknown length is done; yields what changes the words."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(words) as status:
        yield status.update


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _json(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False)
    # names may hold bytes of no encoding, and what a terminal takes for a command
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def write_json(path: Path, record: Mapping[str, Any]) -> Path:
    """A record as a JSON file, atomically."""
    from likewise.media import write_text

    return write_text(path, _json(record) + "\n")


def check_writable(folder: Path) -> Path:
    """Make the folder of the results now: a FileError before the work is better than one after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"{folder}: cannot be written to: {error.strerror or error}") from None
    return folder


def target(path: str, option: str, suffixes: tuple[str, ...]) -> Path:
    """A file that will be written: its name must end as it should and its folder be writable, before any work."""
    if Path(path).suffix.lower() not in suffixes:
        raise InputError(f"{option}: expected a name that ends in {' or '.join(suffixes)}, got {path!r}")
    check_writable(Path(path).absolute().parent)
    return Path(path)


def finite(value: Any) -> Any:
    """What was measured as JSON holds it: numbers that are not finite become null, keys text."""
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ── training ──────────────────────────────────────────────────────────────────────────────────────────────────────


def unfinished(out: str) -> Path:
    """A run directory that may be written to: one that has come to its end is refused."""
    folder = Path(out)
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run already; use another --out")
    check_writable(folder.absolute().parent)
    return folder


def tell_training(folder: Path, name: str, watched: Mapping[str, str], unit: str, as_json: bool) -> None:
    """The last figures of a run, and the curves of what was watched beside them."""
    from likewise import plot
    from likewise.store.run import Run

    run = Run.open(folder)
    lines = {w: [(m["step"], m[key]) for m in run.metrics() if key in m] for key, w in watched.items()}
    series = {w: ([x for x, _ in points], [y for _, y in points]) for w, points in lines.items() if points}
    figures = {k: round(v, 4) for k, v in (run.result or {}).items() if isinstance(v, int | float)}
    last = ", ".join(f"{figures[key]:.3g} {words}" for key, words in watched.items() if key in figures)
    file = str(folder / "model.safetensors")
    words = f"{name}: {f'{unit}: {last}' if last else 'trained'}; {file}"
    result(words, {"model": file, "run": str(folder), "figures": figures}, as_json)
    if series:
        plot.save(plot.curves(series, xlabel="step", ylabel=unit, title="over the training"), folder / "curves.png")
        remark(f"see {folder / 'curves.png'}")
