"""`likewise distributions compare`: what one collection covers of another, and which pictures it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from likewise.cli.distributions import family
from likewise.cli.terminal import check_writable, labels_of, remark, result, tell_left_out, write_json
from likewise.errors import FileError


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--describe", help="module:attribute of what describes pictures; by default EfficientNet-Lite0")
@click.option("--k", default=3, show_default=True, type=click.IntRange(1), help="neighbour that sets a ball's radius")
@click.option("--n", type=click.IntRange(2), help="pictures drawn of a generator; by default as many as the other has")
@family
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of those pictures")
@click.option("--most", default=16, show_default=True, type=click.IntRange(0), help="uncovered pictures that are drawn")
@click.option("--out", default="compare", show_default=True, type=click.Path(), help="folder for picture and JSON")
@click.option("--json", "as_json", is_flag=True, help="print compare.json")
def compare(
    a: str,
    b: str,
    describe: str | None,
    k: int,
    n: int | None,
    family: str | None,
    seed: int,
    most: int,
    out: str,
    as_json: bool,
) -> None:
    """Compare what A (real) and B (fake) cover: Fréchet distance, KID, precision, recall, density, coverage.

    A and B are folders of pictures, .npy or .npz files of features (n, d), or generators (module:attribute, or a file
    of weights). Pictures that cannot be read are named, counted and left out. Writes compare.png (the pictures of A
    that nothing in B covers, each with its nearest) and compare.json.
    """
    from likewise.distributions.compare import compare as measure

    folder = Path(out)
    check_writable(folder)
    sides = [_source(text, family) for text in (a, b)]
    net = _describer(describe, photos=all(isinstance(side, Path) and side.is_dir() for side in sides))
    found = measure(*sides, features=net, k=k, n=n, seed=seed, on_error="skip", progress=True)
    tell_left_out([*found.real.skipped, *found.fake.skipped])
    record = {**found.to_dict(), "a": a, "b": b, "describe": describe, "seed": seed}
    found.plot(folder / "compare.png", labels=labels_of(a, b), most=most)
    write_json(folder / "compare.json", record)
    result(repr(found), record, as_json)
    remark(f"see {folder / 'compare.png'}")


def _source(text: str, family: str | None) -> Any:
    """A folder or a file of features as its path; anything else names a generator."""
    path = Path(text)
    if path.is_dir() or path.suffix.lower() in (".npy", ".npz"):
        return path
    if not path.exists() and ":" not in text:
        raise FileError(f"{text}: no such folder or file, and not the module:attribute of a generator")
    from likewise.distributions.data import load

    return load(text, family=family)


def _describer(text: str | None, *, photos: bool) -> Any:
    """What --describe names; for two folders by default the embedder for photos, which uses all cores."""
    if text is None and photos:
        from likewise.images import default

        return default()
    if text is None:
        return None
    from likewise.distributions.data import load_object

    return load_object(text)
