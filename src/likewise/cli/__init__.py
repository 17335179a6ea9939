"""The command line: `likewise <level> <verb>`, and what belongs to no level.

A LazyGroup knows the names and one-line helps of its commands without importing them, so that --help stays quick.
Whatever goes wrong is one line on stderr: exit 2 for an error (--debug shows the trace), 130 for Ctrl-C.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import click

from likewise.errors import LikewiseError

ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, not when they are listed.

    `lazy` maps a command's name to (its home "module:attribute", its one-line help).
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *(name for name in super().list_commands(ctx) if name not in self.lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), attribute)
        return found if isinstance(found, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            ctx.fail(f"no such command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._one_line(ctx, name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def _one_line(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=100) if command else ""


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    lazy={
        "pixels": (
            "likewise.cli.pixels:pixels",
            "Where did this point go? Align two photos, match, train, reconstruct.",
        ),
        "images": ("likewise.cli.images:images", "Which images are like this one? Train, evaluate, index, search."),
        "sets": ("likewise.cli.sets:sets", "How alike are two bags of features? Albums, videos, tracklets."),
        "distributions": (
            "likewise.cli.distributions:distributions",
            "What does this model or collection cover? Polarity sampling, coverage.",
        ),
        "compare": ("likewise.cli.compare:compare", "Compare two photos, albums, videos, collections or generators."),
        "index": ("likewise.cli.search:index", "Make a folder of photos searchable, or bring its index up to date."),
        "search": ("likewise.cli.search:search", "Find the same thing again: ranked, verified, with the reasons."),
        "studio": ("likewise.cli.studio:studio", "A local page: compare, search, transport, sample, watch runs."),
        "demo": ("likewise.cli.demo:demo", "See what likewise does, on pictures that come with it."),
        "doctor": ("likewise.cli.doctor:doctor", "Check this installation: versions, extras, caches, a self-test."),
    },
)
@click.version_option(None, "-V", "--version", package_name="likewise", message="likewise %(version)s")
@click.option("--debug", is_flag=True, help="Show the whole trace of an error (works anywhere on the line).")
def command(debug: bool) -> None:
    """Compare visual data, and see the reasons."""


@command.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash:  echo 'eval "$(likewise completion bash)"' >> ~/.bashrc
    zsh:   echo 'eval "$(likewise completion zsh)"' >> ~/.zshrc
    fish:  likewise completion fish > ~/.config/fish/completions/likewise.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise LikewiseError(f"shell: click knows no completion for {shell}")
    click.echo(found(command, {}, "likewise", "_LIKEWISE_COMPLETE").source())


def main(args: list[str] | None = None) -> int:
    """Run the command line and return the exit code; nothing but --debug lets a trace through."""
    line = list(sys.argv[1:] if args is None else args)
    asked = os.environ.get("_LIKEWISE_COMPLETE")
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(command, {}, "likewise", "_LIKEWISE_COMPLETE", asked)
    line, debug = _take_debug(line)
    try:
        with _plain_warnings(debug):
            return _run(line)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _hang_up()
    except Exception as error:
        if debug:
            raise
        return _explain(error)


def _run(line: list[str]) -> int:
    """The command itself, its output flushed while a broken pipe can still be caught."""
    code = 0
    try:
        with command.make_context("likewise", line) as context:
            command.invoke(context)
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    sys.stdout.flush()
    return code


def _take_debug(line: list[str]) -> tuple[list[str], bool]:
    """The line without its --debug, which may stand anywhere before `--`."""
    end = line.index("--") if "--" in line else len(line)
    kept = [word for word in line[:end] if word != "--debug"]
    return kept + line[end:], len(kept) < end


def _explain(error: Exception) -> int:
    """One line on stderr for an error, and its exit code."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return ERROR
    if isinstance(error, click.UsageError):
        where = f" ({error.ctx.command_path} --help)" if error.ctx else ""
        return _say(error.format_message().rstrip(".") + where, ERROR)
    if isinstance(error, click.ClickException):
        return _say(error.format_message(), ERROR)
    if isinstance(error, LikewiseError):
        return _say(str(error), ERROR)
    if isinstance(error, OSError) and error.strerror:
        name = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return _say(f"{name}{error.strerror}", ERROR)
    return _say(f"{type(error).__name__}: {error} (not foreseen: --debug shows the trace)", ERROR)


def _say(message: str, code: int) -> int:
    print(f"likewise: {' '.join(message.split())}", file=sys.stderr)
    return code


def _hang_up() -> int:
    """The reader has gone (`likewise … | head`): say nothing, and let nothing be written at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


@contextlib.contextmanager
def _plain_warnings(debug: bool) -> Iterator[None]:
    """A warning on the command line is one line like an error; --debug shows where it came from."""
    with warnings.catch_warnings():
        if not debug:
            warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    _say(f"warning: {message}", 0)
