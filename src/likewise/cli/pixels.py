"""`likewise pixels`: match, video, train, evaluate, sfm, localize, render."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import (
    count,
    device_flag,
    flag,
    json_flag,
    model_flags,
    out_flag,
    seed_flag,
    training_flags,
)
from likewise.errors import FileError, InputError, LikewiseError
from likewise.train.options import build

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.pixels.data import FlowDataset
    from likewise.pixels.localize import Located, Map
    from likewise.pixels.rendering import Pair

    RGB = NDArray[np.uint8]

FEATURES = ("xfeat", "sift", "aliked", "disk", "superpoint", "r2d2")
MATCHERS = ("auto", "lightglue", "lighterglue", "mutual", "ratio")
with_model = model_flags("a run, a model of likewise, or RAFT's published weights (.pth); by default what ships")


def model_at(path: str | None, device: str = "cpu") -> Any:
    """The network in a file or a run directory, or the one that ships; it has .flow(a, b) and .both(a, b)."""
    from likewise.pixels import RAFT, default
    from likewise.store.checkpoint import load

    if path is None:
        return terminal.move(default(), device)
    place = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    model = RAFT.from_official(place) if place.suffix.lower() in (".pth", ".pt") else load(place)
    if not hasattr(model, "both"):
        raise FileError(f"{path}: holds a {type(model).__name__}, which does not align images")
    return terminal.move(model, device)


# ── match ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@flag("--features", default="xfeat", type=click.Choice(FEATURES), help="what is matched")
@flag("--matcher", default="auto", type=click.Choice(MATCHERS), help="auto: LightGlue where it has weights")
@flag("--guide/--no-guide", " /--raw", default=None, help="near the flow, or without it; by default where it helps")
@with_model
@out_flag("matches.png", "where to draw the matches")
@flag("--save", type=click.Path(), help="write them as arrays: .npz")
@json_flag
def match(a: str, b: str, guide: bool | None, out: str, as_json: bool, **given: Any) -> None:
    """Match the features of two photos: XFeat by LighterGlue, or others, near where a flow points [LIFE] or anywhere.

    Says how many are inliers of one homography or fundamental matrix, or why there is none that chance would not find.

    \b
    likewise pixels match day.jpg night.jpg --save matches.npz
    """
    from likewise import plot
    from likewise.pixels.matching import match as match_photos

    figure = terminal.target(out, "out", terminal.DRAWN)
    save, model, device = (given.pop(name) for name in ("save", "model", "device"))
    kept = None if save is None else terminal.target(save, "save", (".npz",))
    with terminal.working("matching"):
        if guide or (guide is None and model is not None):
            given["guide"] = model_at(model, device)
        matches = match_photos(a, b, **({"guide": "auto" if guide is None else "never"} | given))
        geometry = matches.geometry()
        if geometry.matrix is None:
            words = f"no {geometry.kind}: {geometry.reason}"
        else:
            article = {"homography": "a homography", "fundamental": "a fundamental matrix"}[geometry.kind]
            words = f"{geometry.n} of {len(matches)} matches are inliers of {article}"
        plot.save(plot.matches(a, b, matches, title=words), figure)
    if kept is not None:
        matches.save(kept)
    record = matches.to_dict()
    near = f": {record['stage 1']} near the flow, {record['stage 2']} elsewhere" if record["stage 1"] else ""
    lines = [f"{len(matches)} matches{near}", words]
    matrix = None if geometry.matrix is None else geometry.matrix.tolist()
    lines += ["  " + "  ".join(f"{x: .6g}".rjust(13) for x in row) for row in matrix or ()]
    record |= {"a": a, "b": b, "figure": str(figure), "saved": save}
    record |= {"features": given["features"], "matcher": given["matcher"]}
    record["model"] = {"kind": geometry.kind, "matrix": matrix, "inliers": geometry.n, "reason": geometry.reason}
    terminal.result(lines if len(matches) else f"no matches: {matches.reason}", record, as_json)
    terminal.remark(f"see {figure}")


# ── video ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("file", type=click.Path())
@count("--every", default=1, help="take each n-th frame")
@count("--size", least=64, help="make frames smaller first: longest side in pixels")
@flag("--format", "form", default="flo", type=click.Choice(["flo", "png"]), help="Middlebury or KITTI")
@flag("--film", type=click.Path(), help="write frames and colours side by side: film.mp4")
@with_model
@out_flag("flow", "the folder to write to")
@json_flag
def video(file: str, form: str, film: str | None, out: str, as_json: bool, **given: Any) -> None:
    """Where does every pixel of a frame go in the next one? A flow file a frame, and its colours.

    Writes OUT/flow/000000.flo … and OUT/wheel/000000.png …, all in the colours of one scale. Finished frames are kept:
    the same command resumes after a stop.

    \b
    likewise pixels video walk.mp4 --every 2 --film film.mp4
    """
    from likewise.store.run import Run

    shown = None if film is None else terminal.target(film, "film", (".mp4",))
    model, device = given.pop("model"), given.pop("device")
    folder, network = terminal.check_writable(Path(out)), model_at(model, device)
    name = str(getattr(network, "name", type(network).__name__))
    # What a flow depends on; a folder resumes only under the same.
    asked = {"file": str(Path(file).absolute()), "model": name if model is None else str(Path(model).absolute())}
    Run.create(folder, {**asked, "every": given["every"], "size": given["size"], "format": form}, resume=True)
    with terminal.working("decoding") as say:
        flows, fresh = _flows(network, _frames(file, **given), folder / "flow", form, say)
        say("colours")
        wheels, scale = _wheels(flows, folder / "wheel")
        if shown is not None:
            say("film")
            write_film(shown, _side_by_side(_frames(file, **given), wheels))
    record = {"flows": len(flows), "computed": fresh, "model": name, "largest": scale, "out": str(folder), "film": film}
    kept = f", {len(flows) - fresh} as they were" if fresh < len(flows) else ""
    words = f"{len(flows)} flows of {terminal.quote(Path(file).name)}{kept}; full colour is {scale:.3g} px; {folder}"
    terminal.result(words, record, as_json)
    terminal.remark(f"see {shown or folder / 'wheel'}")


def _frames(file: str, every: int, size: int | None) -> Iterator[RGB]:
    from likewise.media import frames
    from likewise.plot.style import fit

    return (fit(frame, size) for frame in frames(file, every=every))


def _flows(network: Any, frames: Iterable[RGB], folder: Path, form: str, say: Any) -> tuple[list[Path], int]:
    """A flow file a pair of consecutive frames, and how many of them were not there before."""
    import torch

    from likewise.types import write_flow

    files, fresh = [], 0
    for number, pair in enumerate(itertools.pairwise(frames)):
        files.append(folder / f"{number:06d}.{form}")
        if files[-1].exists():
            continue
        say(f"frame {number}")
        a, b = (torch.from_numpy(x).permute(2, 0, 1).float() / 255 for x in pair)
        try:
            with torch.inference_mode():
                write_flow(files[-1], network.flow(a, b).numpy())
        except LikewiseError as error:
            raise type(error)(f"frame {number}: {error}") from error
        fresh += 1
    if not files:
        raise InputError("file: expected two frames at least; take fewer apart (--every)")
    return files, fresh


def _wheels(flows: list[Path], folder: Path) -> tuple[list[Path], float]:
    """The colours of each flow on one scale: the largest of the flows' 99th percentiles."""
    from likewise.media import write_image
    from likewise.plot.flows import longest, wheel
    from likewise.types import read_flow

    scale = max(longest(read_flow(f)) for f in flows)
    return [write_image(folder / f"{f.stem}.png", wheel(read_flow(f), largest=scale)) for f in flows], scale


def _side_by_side(frames: Iterable[RGB], wheels: list[Path]) -> Iterator[RGB]:
    """Each frame with the colours of its flow at its right; sides are even, as films need them."""
    import numpy as np

    from likewise.media import read_array

    for frame, wheel in zip(frames, wheels, strict=False):
        both = np.hstack([frame, read_array(wheel)])
        yield both[: both.shape[0] // 2 * 2, : both.shape[1] // 2 * 2]


def write_film(path: Path, frames: Iterable[RGB], rate: int = 12) -> None:
    """Images (h, w, 3) of one size as a film, by PyAV."""
    import av

    from likewise.media import atomic

    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with atomic(path) as sibling, av.open(str(sibling), "w", format="mp4") as container:
        stream: Any = container.add_stream(codec, rate=Fraction(rate))
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


# ── train ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TRAINING = {
    "Length": ("steps", "evaluate_every"),
    "Data": ("height", "width", "validation"),
    "Network": ("network", "iters", "lr"),
}
"""The options of Config that are flags, by their headings; the others are for Python and `likewise papers life`."""


@click.command(cls=Command)
@click.argument("photos", type=click.Path())
@out_flag("run", "the run directory")
@flag("--scenes", default="rendered", help="pairs with F: rendered, none, or a folder of `likewise pixels sfm`")
@flag("--start", type=click.Path(), help="a trained model to start from")
@device_flag
@seed_flag
@training_flags("likewise.pixels.training:Config", TRAINING)
@json_flag
def train(
    photos: str, out: str, scenes: str, start: str | None, resume: bool, device: str, as_json: bool, **given: Any
) -> None:
    """Train a network that aligns photos, from a folder of any PHOTOS: no flow need be known.

    The defaults are for a CPU. Some photos are set aside; the error on them, bent, is shown as it goes and chooses
    the weights. Writes RUN/model.safetensors, metrics.jsonl and curves.png. A stopped run resumes with the same
    command. Several processes: torchrun --nproc-per-node 2 -m likewise.cli pixels train …

    \b
    likewise pixels train photos/ --out run
    """
    from likewise.pixels.data import Photos
    from likewise.pixels.training import Config
    from likewise.pixels.training import train as train_network
    from likewise.train.distributed import ProcessGroup

    folder, first = terminal.unfinished(out), ProcessGroup.current().first
    config = build(Config, given | ({"scenes": 0} if scenes == "none" else {}))
    images = Photos.folder(photos)
    if first:
        terminal.remark(f"{len(images)} photos, {config.steps or config.total} steps")
    begun = None if start is None else model_at(start)
    source = None if scenes == "none" else scenes
    model = train_network(images, config, scenes=source, out=folder, resume=resume, start=begun, device=device)
    if first:
        watched = {"bent": "after the last step", "bent_start": "at the start"}
        name = getattr(model, "name", type(model).__name__)
        terminal.tell_training(folder, name, watched, "error on bent photos, px", as_json)


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────────────────────

FIGURES = (
    *("n", "aepe", "acc@1", "acc@3", "acc@5", "fl", "sparse@1", "sparse@3", "sparse@5", "matches"),
    *("mma@1", "mma@3", "mma@5", "corners@5", "auc@5", "auc@10", "auc@20", "seconds"),
)
"""Figures that are printed where there are any; the JSON has all."""
HELD_OUT = 100
"""Pairs of the renderer's held-out set."""


@click.command(cls=Command)
@click.argument("data", type=click.Path())
@with_model
@count("--size", least=8, help="make images smaller first: shortest side in pixels; by default their own")
@out_flag("evaluate", "folder for evaluate.json")
@json_flag
def evaluate(data: str, model: str | None, device: str, out: str, as_json: bool, **given: Any) -> None:
    """Measure flow on pairs of which the truth is known.

    DATA is a folder of pairs, each a folder with a.png, b.png and flow.flo (or flow.png, KITTI's) as `likewise pixels
    render` writes them; or the word rendered, the renderer's held-out set. Published data: `likewise papers life`.
    Prints a row a group; writes evaluate.json (every pair).

    \b
    likewise pixels render --out pairs && likewise pixels evaluate pairs
    """
    from likewise.pixels.evaluation import evaluate as measure

    folder, dataset, network = terminal.check_writable(Path(out)), _dataset(data), model_at(model, device)
    terminal.remark(f"{dataset}")
    report = measure(network, dataset, progress=sys.stderr.isatty(), **given)
    terminal.tell_left_out([(s["name"], s["reason"]) for s in report["skipped"]])
    record = terminal.finite({**report, "data": data})
    terminal.write_json(folder / "evaluate.json", record)
    at = "own size" if record["size"] is None else f"{record['side']} side {record['size']} px"
    rows = {**record["groups"], "all": record} if len(record["groups"]) > 1 else {"all": record}
    names = [c for c in FIGURES if any(row.get(c) is not None for row in rows.values())]
    cells = [["", *names], *([name, *(terminal.cell(row.get(c)) for c in names)] for name, row in rows.items())]
    head = f"{record['dataset']}: {record['n']} pairs at {at}, {record['model']}"
    terminal.result([head, *terminal.columns(cells)], record, as_json)
    terminal.remark(f"see {folder}")


def _dataset(data: str) -> FlowDataset:
    from likewise.pixels.data import FlowDataset, FlowPair, rendered
    from likewise.pixels.rendering import held_out_pairs

    if data == "rendered" and not Path(data).exists():
        with terminal.working(f"rendering {HELD_OUT} pairs"):
            return rendered(held_out_pairs(HELD_OUT), "held-out, rendered")
    if not Path(data).is_dir():
        raise FileError(f"{data}: no such folder")
    items = []
    for truth in sorted(Path(data).rglob("flow.*")):
        a, b = (next(iter(sorted(truth.parent.glob(f"{side}.*"))), None) for side in "ab")
        if a is not None and b is not None and truth.suffix.lower() in (".flo", ".png"):
            hidden = truth.parent / "occluded.png"
            name = str(truth.parent.relative_to(data))
            items.append(FlowPair(a, b, name, Path(data).name, truth, hidden if hidden.exists() else None))
    if not items:
        raise FileError(f"{data}: no pair in it; expected folders with a.png, b.png and flow.flo or flow.png")
    return FlowDataset(tuple(items), Path(data).name)


# ── sfm ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("photos", type=click.Path())
@out_flag("sfm", "the folder to write to")
@count("--size", least=64, default=1000, help="longest side of photos in pixels")
@flag("--matcher", default="exhaustive", type=click.Choice(["exhaustive", "sequential"]), help="all pairs, or a walk's")
@flag(
    "--camera",
    default="auto",
    type=click.Choice(["auto", "single", "each"]),
    help="who shares intrinsics: photos of one make, focal length and size; all of one size; nobody",
)
@seed_flag
@json_flag
def sfm(photos: str, out: str, as_json: bool, **given: Any) -> None:
    """Reconstruct a place from a folder of PHOTOS (COLMAP through pycolmap), and keep pairs with their F.

    This is LIFE's own supervision: likewise pixels train PHOTOS --scenes OUT learns from it. Writes OUT/images, model
    (COLMAP's files) and summary.json. Finished steps are kept: the same command resumes after a stop.

    \b
    likewise pixels sfm photos/ --out sfm
    """
    from likewise.pixels.sfm import reconstruct
    from likewise.store.run import read_json

    folder = terminal.check_writable(Path(out))
    with terminal.working("reconstructing"):
        pairs = reconstruct(photos, folder, report=terminal.remark, **given)
    summary = read_json(folder / "summary.json")
    lines = [
        f"{summary['registered']} of {summary['photos']} photos placed, {summary['points']:,} points, reprojection "
        f"error {summary['reprojection error']:.2f} px",
        f"{len(pairs)} pairs, epipolar error {summary['epipolar error']:.2f} px in the median; {folder}",
    ]
    left = [terminal.quote(Path(name).name) for name in summary["left out"]]
    if left:
        lines.append(f"not placed: {', '.join(left[:8])}" + (f" and {len(left) - 8} more" if len(left) > 8 else ""))
    if (scale := summary["metres a unit"]) is not None:
        lines.append(f"by GPS, a unit is {scale['scale']:.2f} m; the two disagree by {scale['error']:.1f} m")
    terminal.result(lines, summary | {"out": str(folder)}, as_json)


# ── localize ──────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@click.argument("place", metavar="MAP", type=click.Path())
@click.argument("query", nargs=-1, type=click.Path())
@flag("--build", type=click.Path(), help="make MAP of this folder of photos first, as likewise pixels sfm does")
@flag("--features", default="sift", type=click.Choice(FEATURES), help="what is matched")
@flag("--guided/--raw", default=True, help="matches with the flow, or without it")
@with_model
@seed_flag
@json_flag
def localize(place: str, query: tuple[str, ...], build: str | None, as_json: bool, **given: Any) -> None:
    """Place each QUERY photo in MAP, a folder that likewise pixels sfm or --build made: its pose, X_camera = R X + t.

    Centres are in the map's own units, and in metres where the photos' GPS gives the scale. A photo that cannot be
    placed says why.

    \b
    likewise pixels localize map/ query.jpg --build photos/
    """
    from likewise.pixels.localize import Map

    if not query and build is None:
        raise InputError("query: expected a photo at least, or --build PHOTOS to make a map")
    if build is None:
        survey = Map.open(place)
    else:
        terminal.check_writable(Path(place))
        with terminal.working("building the map"):
            survey = Map.build(build, place, report=terminal.remark)
    terminal.remark(f"{survey}")
    network, device = given.pop("model"), given.pop("device")
    given["guide"] = model_at(network, device) if given.pop("guided") and query else "never"
    poses = []
    with terminal.working("placing") as say:
        for name in query:
            say(name)
            poses.append(survey.localize(name, **given))
    rows = [{"query": name, **at.to_dict()} for name, at in zip(query, poses, strict=True)]
    about = {"photos": len(survey), "points": len(survey.survey.points), "metres a unit": survey.metres}
    lines = [_pose(name, at, survey) for name, at in zip(query, poses, strict=True)]
    record = {"map": str(survey.folder), **about, "queries": rows}
    terminal.result(lines or f"{survey} in {survey.folder}", record, as_json)


def _pose(name: str, at: Located, survey: Map) -> str:
    if at.centre is None:
        return f"{terminal.quote(name)}: not placed: {at.reason}"
    x, y, z = at.centre
    scale = "" if survey.metres is None else f" ({survey.metres:.3g} m a unit)"
    inliers = f"{at.n} of {len(at.points)} matches are inliers"
    return f"{terminal.quote(name)}: at ({x:.3f}, {y:.3f}, {z:.3f}){scale}; {inliers}"


# ── render ────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command(cls=Command)
@out_flag("rendered", "the folder to write to")
@flag("--pairs", default=8, type=click.IntRange(1, 100_000), help="how many")
@flag("--size", default="240x320", help="height × width in pixels")
@flag("--textures", type=click.Path(), help="a folder of photos to paint with; by default made-up patterns")
@seed_flag
@json_flag
def render(out: str, pairs: int, size: str, textures: str | None, seed: int, as_json: bool) -> None:
    """Render pairs of images of random places under two lights, with exact flow, occlusion and cameras.

    Each pair is a folder: a.png, b.png, flow.flo (a→b), occluded.png (white where something stands before the pixel in
    b) and F.json (F, and the cameras Ka, Kb, R, t). Pairs that are there are kept.

    \b
    likewise pixels render --pairs 20 --out pairs
    """
    from likewise.pixels.data import Photos
    from likewise.pixels.rendering import Renderer
    from likewise.store.run import Run, progress

    shape = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", size)
    if shape is None:
        raise InputError(f"size: expected height x width in pixels, such as 240x320, got {size!r}")
    folder, (height, width) = terminal.check_writable(Path(out)), (int(shape[1]), int(shape[2]))
    paint = None if textures is None else Photos.folder(textures, shortest=384).pictures
    renderer = Renderer(paint, (height, width))
    asked: dict[str, Any] = {"size": [height, width], "seed": seed}
    Run.create(folder, {**asked, "textures": textures and str(Path(textures).resolve())}, seed=seed, resume=True)
    places = [folder / f"{i:05d}" for i in range(pairs)]
    with progress(pairs, "rendering") as advance:
        for i, place in enumerate(places):
            if not (place / "F.json").exists():  # written last, it says that all is there
                write_pair(renderer.pair(seed + i), place, seed + i)
            advance()
    record = asked | {"pairs": pairs, "out": str(folder)}
    terminal.result(f"{pairs} pairs of {height} × {width} px in {folder}", record, as_json)


def write_pair(pair: Pair, place: Path, seed: int) -> None:
    """The files of a pair."""
    from likewise.media import write_image
    from likewise.types import write_flow

    for name in ("a", "b"):
        write_image(place / f"{name}.png", getattr(pair, name).permute(1, 2, 0).clamp(0, 1).numpy())
    write_flow(place / "flow.flo", pair.flow.numpy())
    write_image(place / "occluded.png", pair.occluded.numpy().astype("uint8") * 255)
    cameras = {name: getattr(pair, name).tolist() for name in ("F", "Ka", "Kb", "R", "t")}
    terminal.write_json(place / "F.json", {"seed": seed, **cameras})
