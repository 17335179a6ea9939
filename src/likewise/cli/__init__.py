"""The command line: `likewise <verb>` for what picks its level by itself, `likewise <level> <verb>` for the rest.

The groups know the names and one-line helps of their commands without importing them, so that --help stays quick;
heavy imports stand inside the functions of the commands.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

from likewise.errors import LikewiseError


class Command(click.Command):
    """A command whose --help lists options under the headings that they were declared with.

    Options of a training come from its configuration, whose module is heavy: they are read when they are needed.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        read = vars(self.callback).pop("read_options", None)
        if read is not None:
            self.params += read()
        return super().get_params(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                groups.setdefault(getattr(param, "group", None) or "Options", []).append(record)
        for name in sorted(groups, key="Options".__ne__):  # those without a heading come first
            with formatter.section(name):
                formatter.write_dl(groups[name])


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, not when they are listed.

    `lazy` maps a command's name to (its home "module:attribute", its one-line help).
    """

    command_class = Command

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *self.commands]  # in the order of their declaration

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            ctx.fail(f"no such command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._one_line(ctx, name)) for name in self.list_commands(ctx)])

    def _one_line(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = super().get_command(ctx, name)
        return command.get_short_help_str(limit=100) if command else ""


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    lazy={
        "compare": ("likewise.cli.compare:compare", "Compare two photos, albums, videos, collections or generators."),
        "index": ("likewise.cli.compare:index", "Make a folder of photos searchable; run again to update."),
        "search": ("likewise.cli.compare:search", "Find the same thing again: ranked, verified, with the reasons."),
        "studio": ("likewise.cli.compare:studio", "A local page: compare, search, transport, sample, watch runs."),
        "demo": ("likewise.cli.demo:demo", "See what likewise does, on photographs that come with it."),
        "doctor": ("likewise.cli.doctor:doctor", "Check this installation: versions, extras, caches, a self-test."),
        "papers": ("likewise.cli.papers:papers", "Make the tables and figures of the four papers."),
    },
)
@click.version_option(None, "-V", "--version", package_name="likewise", message="likewise %(version)s")
@click.option("--debug", is_flag=True, help="Show the whole trace of an error (works anywhere on the line).")
@click.option(
    "--trust", is_flag=True, help="Decode files in this process: for files of your own (works anywhere, too)."
)
def command(debug: bool, trust: bool) -> None:
    """Compare visual data, and see the reasons.

    \b
    likewise compare day.jpg night.jpg
    likewise index photos/ && likewise search query.jpg
    """


GROUPS = {
    "pixels": (
        "Where did this point go? Match, follow, train, reconstruct.",
        {
            "match": ("likewise.cli.pixels:match", "Match the features of two photos, guided by their flow."),
            "video": ("likewise.cli.pixels:video", "The flow of each frame of a video to the next."),
            "train": ("likewise.cli.pixels:train", "Train a network on a folder of photos (LIFE)."),
            "evaluate": ("likewise.cli.pixels:evaluate", "How good is the flow where the truth is known?"),
            "sfm": ("likewise.cli.pixels:sfm", "From a folder of photos to pairs with fundamental matrices."),
            "localize": ("likewise.cli.pixels:localize", "Where was this photo taken, in a map of photos?"),
            "render": ("likewise.cli.pixels:render", "Write rendered pairs with exact flow, occlusion and F."),
        },
    ),
    "images": (
        "Which images are like this one? Train, embed, evaluate, export.",
        {
            "train": ("likewise.cli.images:train", "Train an embedder on labelled images (DiVA)."),
            "embed": ("likewise.cli.images:embed", "Embed a folder of images to a file of rows."),
            "evaluate": ("likewise.cli.images:evaluate", "How well does a model find images of the same class?"),
            "export": ("likewise.cli.images:export", "Write an embedder as ONNX, with a model card."),
        },
    ),
    "sets": (
        "How alike are two bags of features? A set is a folder of images, a video, or an entry of an .npz file.",
        {
            "distances": ("likewise.cli.sets:distances", "All distances between many sets, as a matrix on disk."),
            "fit": ("likewise.cli.sets:fit", "Learn a metric from labelled sets."),
        },
    ),
    "distributions": (
        "What does this model or collection cover? A generator is a name, `module:attribute`, or a file of weights.",
        {
            "harvest": ("likewise.cli.distributions:harvest", "Measure a generator's volumes, once."),
            "sample": ("likewise.cli.distributions:sample", "Draw images from a bank with polarity ρ."),
            "sweep": ("likewise.cli.distributions:sweep", "Quality and diversity over ρ and truncation."),
            "modes": ("likewise.cli.distributions:modes", "Show the modes and anti-modes of a generator."),
        },
    ),
    "weights": (
        "Weights: those that come with likewise, and published ones by name.",
        {
            "list": ("likewise.cli.weights:list_weights", "Name, size, licence, what for, and where it is."),
            "fetch": ("likewise.cli.weights:fetch_weights", "Download published weights; a stopped download resumes."),
            "add": ("likewise.cli.weights:add_weights", "Copy a file of published weights into the cache."),
            "check": ("likewise.cli.weights:check_weights", "Compare every file that is here with its digest."),
        },
    ),
}
"""The commands of each level, and of the weights."""
for _name, (_words, _lazy) in GROUPS.items():
    command.add_command(LazyGroup(_name, help=_words, lazy=_lazy))


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

    completer = get_completion_class(shell)
    if completer is None:
        raise LikewiseError(f"shell: click knows no completion for {shell}")
    click.echo(completer(command, {}, "likewise", "_LIKEWISE_COMPLETE").source())


def main(args: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from likewise.cli.__main__ import run

    return run(args)
