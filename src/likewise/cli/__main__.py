"""Running a line: `likewise …` and `python -m likewise.cli …`.

Whatever goes wrong is one line on stderr: exit 2 for an error (--debug shows the trace), 130 for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import click
from click.shell_completion import shell_complete

from likewise.cli import command
from likewise.cli.terminal import warn
from likewise.errors import LikewiseError

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def run(args: list[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing but --debug lets a trace through."""
    line = list(sys.argv[1:] if args is None else args)
    asked = os.environ.get("_LIKEWISE_COMPLETE")
    if asked:
        return shell_complete(command, {}, "likewise", "_LIKEWISE_COMPLETE", asked)
    line, debug = _take(line, "--debug")
    line, trust = _take(line, "--trust")
    try:
        with _plain_warnings(debug), _trusted() if trust else contextlib.nullcontext():
            return _invoke(line)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone (`likewise … | head`): say nothing, and let nothing be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _invoke(line: list[str]) -> int:
    """The command itself, its output flushed while a broken pipe can still be caught."""
    code = 0
    try:
        with command.make_context("likewise", line) as context:
            command.invoke(context)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    sys.stdout.flush()
    return code


@contextlib.contextmanager
def _trusted() -> Iterator[None]:
    from likewise.bounded import trusted

    with trusted():
        yield


def _take(line: list[str], flag: str) -> tuple[list[str], bool]:
    """The line without a flag, which may stand anywhere before `--`; and whether it stood there."""
    end = line.index("--") if "--" in line else len(line)
    kept = [word for word in line[:end] if word != flag]
    return kept + line[end:], len(kept) < end


def _explain(error: Exception) -> int:
    """One line on stderr for an error, and its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return ERROR
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        where = f" ({context.command_path} --help)" if context else ""
        return _say(error.format_message().rstrip(".") + where, ERROR)
    if isinstance(error, LikewiseError):
        return _say(str(error), ERROR)
    if isinstance(error, OSError) and error.strerror:
        name = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return _say(f"{name}{error.strerror}", ERROR)
    return _say(f"{type(error).__name__}: {error} (not foreseen: --debug shows the trace)", ERROR)


def _say(message: str, code: int) -> int:
    warn(" ".join(message.split()))
    return code


@contextlib.contextmanager
def _plain_warnings(debug: bool) -> Iterator[None]:
    """A warning on the command line is one line like an error; --debug shows where it came from."""
    with warnings.catch_warnings():
        if not debug:
            warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    _say(f"warning: {message}", 0)


if __name__ == "__main__":
    sys.exit(run())
