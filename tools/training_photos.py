"""Freely licensed photos to train the level pixels on, out of Debian's packages.

    python tools/training_photos.py photos/

Fetches the packages with apt (nothing is installed), keeps what looks like a photo, and writes each with its shorter
side at 540 px, and SOURCES.txt with package, version and path of every one. Pictures that the measurements use (graf,
leuven, RubberWhale), test charts and screenshots are left out. The licences stand in each package's copyright file.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import click
import numpy as np

from likewise import media
from likewise.errors import LikewiseError

PACKAGES = (
    "gnome-backgrounds",
    "lomiri-wallpapers-16.04",
    "lomiri-wallpapers-20.04",
    "mate-backgrounds",
    "plasma-workspace-wallpapers",
    "ukui-wallpapers",
    "opencv-doc",
    "jigzo-data",
    "gcompris-qt-data",
    "stellarium-data",
    "ufoai-textures",
)
REFUSED = re.compile(
    r"graf|leuven|rubberwhale|lena|/html/|chess|left\d|right\d|/dnn/|notes|normal|_nm|_norm|_gloss|_bump|_glow|_sm\.|"
    r"screenshot|preview|nebulae|heightmap|skycult|/textures/(misc|ui|gui|nodetextures)",
    re.IGNORECASE,
)
SHORTEST = 540
LAYOUT = 20.0
"""Least standard deviation of a picture at 16 × 12 px: one that is alike all over cannot be matched."""


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--packages", default=",".join(PACKAGES), show_default=True, help="Debian packages, by commas")
@click.option("--unpacked", type=click.Path(path_type=Path), help="a folder with the packages' trees, instead of apt")
def main(out: Path, packages: str, unpacked: Path | None) -> None:
    """Fetch, choose, write."""
    with tempfile.TemporaryDirectory() as scratch:
        root = unpacked or fetched(packages.split(","), Path(scratch))
        lines = chosen(root, out, packages.split(","))
    media.write_text(out / "SOURCES.txt", "\n".join(lines) + "\n")
    click.echo(f"{out}: {len(lines)} photos")


def fetched(packages: list[str], scratch: Path) -> Path:
    """The packages' files, each in a folder of its name."""
    for name in packages:
        subprocess.run(["apt-get", "download", name], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        archive = next(scratch.glob(f"{name}_*.deb"))
        subprocess.run(["dpkg", "-x", archive.name, name], cwd=scratch, check=True)
        archive.unlink()
    return scratch


def chosen(root: Path, out: Path, packages: list[str]) -> list[str]:
    """Write the photos of the packages; a line of provenance for each."""
    if out.exists() and any(out.glob("*.jpg")):
        shutil.rmtree(out)
    seen: set[bytes] = set()
    lines = []
    for package in packages:
        for path in media.images(root / package):
            name = str(path.relative_to(root))
            picture = None if path.is_symlink() or REFUSED.search(name) else photo(path)
            if picture is None or (key := outline(picture)) in seen:
                continue
            seen.add(key)
            short = f"{package}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.jpg"
            media.write_image(out / short, picture, quality=92)
            lines.append(f"{short}\t{name}")
    return lines


def photo(path: Path) -> np.ndarray | None:
    """The picture, if it is large enough and has texture in most places, many colours, and a layout."""
    import cv2

    try:
        picture = media.read_array(path, side=SHORTEST)
    except LikewiseError:
        return None
    if min(picture.shape[:2]) < 256 or max(picture.shape[:2]) > 4 * min(picture.shape[:2]):
        return None
    share = SHORTEST / min(picture.shape[:2])
    if share < 1:
        picture = cv2.resize(picture, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)
    small = cv2.resize(picture, (160, 120), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(small, cv2.COLOR_RGB2GRAY).astype(float)
    blocks = grey.reshape(15, 8, 20, 8).transpose(0, 2, 1, 3).reshape(-1, 64)
    colours = len(np.unique(picture[::4, ::4].reshape(-1, 3) // 8, axis=0))
    layout = cv2.resize(grey, (16, 12), interpolation=cv2.INTER_AREA).std()  # lawns and gravel have none
    return picture if (blocks.std(1) > 4).mean() >= 0.5 and colours >= 250 and layout >= LAYOUT else None


def outline(picture: np.ndarray) -> bytes:
    """A picture's 8 × 8 signs against its mean, by which copies are found."""
    import cv2

    small = cv2.resize(picture, (8, 8), interpolation=cv2.INTER_AREA).mean(2)
    return np.packbits(small > small.mean()).tobytes()


if __name__ == "__main__":
    main()
