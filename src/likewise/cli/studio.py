"""`likewise studio`: a local page for all four levels."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER or INDEX]...", type=click.Path())
@click.option("--runs", multiple=True, type=click.Path(), help="a run directory, or a folder of them; may be repeated")
@click.option("--generator", metavar="SPEC", help="a generator of your own: module:attribute, or a file of weights")
@click.option("--real", type=click.Path(path_type=Path), help="real images that the generator is measured against")
@click.option("--port", default=0, show_default="a free one", type=click.IntRange(0, 65535), help="on 127.0.0.1")
@click.option("--open/--no-open", "open_browser", default=True, show_default=True, help="open the page in a browser")
def studio(
    folders: tuple[str, ...],
    runs: tuple[str, ...],
    generator: str | None,
    real: Path | None,
    port: int,
    open_browser: bool,
) -> None:
    """Open a local page: compare, search, transport, sample, watch runs.

    Folders and indexes that are named can be searched there; samples are always there. The page is served to this
    machine only, at an address with a token in it, which is printed on one line. Ctrl-C ends it.
    """
    from likewise.studio import serve

    runs_at = [Path(run) for run in runs]
    serve(folders, runs=runs_at, generator=generator, real=real, port=port, open_browser=open_browser)
