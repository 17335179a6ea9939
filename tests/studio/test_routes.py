"""Every route: what it gives on small images, and what it says to nonsense."""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from likewise import media
from likewise.distributions import pretrained
from likewise.images.metrics import lay_out
from likewise.sets import Signature, WassersteinLMNN
from likewise.studio import distributions, images, sets
from likewise.studio.app import Given, Session
from likewise.studio.distributions import Opened
from likewise.studio.requests import Cancelled

from .conftest import answering, encoded, lines_of, load, result_of, scene
from .test_mutated import BODIES

Send = Callable[..., dict[str, Any]]
pytestmark = [
    pytest.mark.filterwarnings("ignore::likewise.errors.SmallSampleWarning"),
    pytest.mark.filterwarnings("ignore::likewise.errors.DegeneracyWarning"),
]


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def moved(send: Send) -> dict[str, str]:
    """An image and the same moved by six pixels to the right and four down."""
    whole = scene(1, 128)
    return {"a": send(whole[8:104, 8:104])["id"], "b": send(whole[4:100, 2:98])["id"]}


@pytest.fixture(scope="module")
def aligned(client: httpx.Client, moved: dict[str, str]) -> Any:
    return result_of(client, "api/pixels/compare", moved)


def test_two_images_are_aligned(client: httpx.Client, aligned: dict[str, Any], moved: dict[str, str]) -> None:
    assert aligned["sizes"] == [[96, 96], [96, 96]]
    assert aligned["distance"] < 1
    assert aligned["cycle_consistency"] > 0.7
    assert aligned["aligned"] > 0.5
    assert aligned["reason"] == ""
    assert aligned["largest"] == pytest.approx(math.hypot(6, 4), abs=1)
    shown = {name: load(client, url) for name, url in aligned["images"].items()}
    assert shown.pop("wheel").shape == (144, 144, 3)
    assert set(shown) == {"flow", "warp", "confidence"}
    assert {im.shape for im in shown.values()} == {(96, 96, 3)}
    a, b = (load(client, f"api/pictures/{moved[name]}/view") for name in ("a", "b"))
    middle = (slice(16, 80), slice(16, 80))
    off = [np.abs(one[middle].astype(int) - a[middle]).mean() for one in (shown["warp"], b)]
    assert off[0] < off[1] / 2


def test_a_point_goes_there_and_back(client: httpx.Client, aligned: dict[str, Any]) -> None:
    said = client.post("api/pixels/point", json={"key": aligned["key"], "x": 40, "y": 50}).json()
    assert (said["x"], said["y"]) == pytest.approx((46, 54), abs=1)
    assert said["inside"]
    assert 0.5 < said["confidence"] <= 1
    assert 0 <= said["error"] < 1


def test_the_evidence_of_a_pair_is_found_once(
    client: httpx.Client, moved: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = result_of(client, "api/images/why", moved)
    assert (said["a"]["id"], said["b"]["id"]) == (moved["a"], moved["b"])
    assert said["verdict"] in ("same", "unsure")  # a hundred pixels of noise have few features
    assert 0.1 < said["probability"] <= 1
    assert said["inliers"] == len(said["points"]) <= said["matches"]
    assert str(said["inliers"]) in said["words"]
    scale = said["sizes"][0][0] / 96
    good = np.array(said["points"]) / scale
    assert np.median(good[:, 2:] - good[:, :2], axis=0) == pytest.approx([6, 4], abs=1.5)
    monkeypatch.setattr(images, "pair", None)  # asked again, it is what was found
    again = result_of(client, "api/images/why", moved)
    assert again == {**said, "warp": again["warp"]}


def test_a_warp_follows_the_homography_at_any_size() -> None:
    whole = scene(3, 192)
    a, b = whole[16:144, 16:144], whole[8:136, 4:132]  # b is a, moved by 12 and 8
    halved = {"sizes": [[64, 64], [64, 64]], "matrix": [[1, 0, 6], [0, 1, 4], [0, 0, 1]]}
    warped = images.warp(a, b, halved)
    assert np.abs(warped[:112, :112].astype(int) - a[:112, :112]).max() <= 2
    assert (warped[:, 120:] == images.OUTSIDE).all()


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def gallery(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Any]]:
    """A studio that was given a folder, and the folder opened in it."""
    session = Session(Given(folders=(str(folder),)), cache=tmp_path_factory.mktemp("indexes"))
    with answering(session) as client:
        listed = client.post("api/images/gallery", json={"source": folder.name}).json()
        refused = client.post("api/images/search", json={"source": folder.name, "query": listed["pictures"][0]["id"]})
        assert "not indexed yet" in refused.text
        lines = lines_of(client, "api/images/open", {"source": folder.name})
        assert lines[-1]["state"] == "done", lines[-1]
        opened = lines[-1]["result"]
        assert [p["id"] for p in listed["pictures"]] == [p["id"] for p in opened["pictures"]]
        assert any(line.get("words") == "indexing, 10 of 10" for line in lines)
        yield client, opened


def test_a_folder_is_opened_and_mapped(gallery: Any, folder: Path) -> None:
    client, opened = gallery
    sources = client.get("api/images/sources").json()
    assert [(s["name"], s["count"]) for s in sources] == [(folder.name, 10), ("samples", None)]
    assert (opened["count"], opened["words"]) == (10, "10 photos")
    assert [p["label"] for p in opened["pictures"]] == ["left"] * 5 + ["right"] * 5
    dated = {p["name"]: p["time"] for p in opened["pictures"] if p["time"]}
    early = dict.fromkeys(("left/0.png", "right/5.png"), "2024-05-01 12:00")
    assert dated == {**early, "right/9.png": "2024-07-01 12:00"}
    assert opened["pictures"][0]["place"] == [55.5, -13.25]
    spots = result_of(client, "api/images/map", {"source": folder.name})
    places = np.array([spots[p["id"]] for p in opened["pictures"]])
    assert (places.min(), places.max()) == (0, 1)
    assert np.linalg.norm(places[0] - places[5]) < 0.1  # the same image twice
    assert load(client, opened["pictures"][3]["thumb"]).shape == (160, 160, 3)


def test_a_search_is_told_in_stages_and_its_evidence_is_opened(
    gallery: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, opened = gallery
    query = opened["pictures"][0]
    fields = {"source": folder.name, "query": query["id"], "k": 4, "verify": 2}
    lines = lines_of(client, "api/images/search", fields)
    partial = [line["result"] for line in lines if line["state"] == "partial"]
    assert len(partial) == 1
    assert "verdict" not in partial[0]["hits"][0]
    result = lines[-1]["result"]
    assert result["query"]["id"] == query["id"]
    assert query["id"] not in {h["picture"]["id"] for h in result["hits"]}  # it does not find itself
    assert [h["verified"] for h in result["hits"]] == [True, True, False, False]
    first, second = result["hits"][:2]
    assert (first["picture"]["name"], first["verdict"]) == ("right/5.png", "same")
    assert first["inliers"] >= 8
    assert first["probability"] > second["probability"]
    monkeypatch.setattr(images, "pair", None)  # what a hit opens is what its card says: nothing is found again
    said = result_of(client, "api/images/why", {"a": query["id"], "b": first["picture"]["id"]})
    assert {n: said[n] for n in ("verdict", "probability", "inliers", "matches")} == {
        n: first[n] for n in ("verdict", "probability", "inliers", "matches")
    }
    if said["model"] == "homography":
        assert np.abs(load(client, said["warp"]).astype(int) - load(client, query["url"])).mean() < 8
    monkeypatch.undo()
    sent = client.post("api/pictures", content=encoded(scene(7, 160))).json()[0]
    fields = {"source": folder.name, "query": sent["id"], "k": 2, "verify": 0}
    assert result_of(client, "api/images/search", fields)["hits"][0]["picture"]["name"] == "right/7.png"


@pytest.mark.parametrize(
    ("since", "until", "names"),
    [
        ("2024-06-01", "", ["right/9.png"]),
        ("", "2024-05-01", ["left/0.png", "right/5.png"]),
        ("2023-01-01", "2023-12-31", []),
    ],
)
def test_a_search_keeps_to_the_dates(gallery: Any, folder: Path, since: str, until: str, names: list[str]) -> None:
    client, opened = gallery
    fields = {"source": folder.name, "query": opened["pictures"][3]["id"], "verify": 0, "since": since, "until": until}
    hits = result_of(client, "api/images/search", fields)["hits"]
    assert [hit["picture"]["name"] for hit in hits] == names


def test_copies_are_grouped_equal_files_first(gallery: Any, folder: Path) -> None:
    client, opened = gallery
    lines = lines_of(client, "api/images/duplicates", {"source": folder.name})
    early, result = (next(x["result"] for x in lines if x["state"] == state) for state in ("partial", "done"))
    ids = [opened["pictures"][i]["id"] for i in (0, 5)]
    for one, done in ((early, False), (result, True)):
        assert (one["done"], one["folder"], one["count"]) == (done, str(folder), 10)
        group = next(g for g in one["groups"] if {c["picture"]["id"] for c in g["copies"]} == set(ids))
        assert group["keep"] == group["copies"][0]["picture"]["id"]
        assert group["copies"][1]["bytes"] == (folder / group["copies"][1]["picture"]["name"]).stat().st_size
    assert early["groups"][0]["copies"][1]["what"] == "exact copy"


def test_a_group_of_the_library_is_shown_as_it_says(gallery: Any, folder: Path, session: Session) -> None:
    paths = [str(folder / name) for name in ("left/1.png", "left/2.png")]
    copy = SimpleNamespace(path=paths[0], what="crop 62 %, mirrored", why="30 of 31 matches are inliers")

    class Group(list[str]):
        keep, copies = paths[1], [copy]

    told = images.Tab(session.store, folder, Given())._group(folder, Group(paths), True)
    assert [c["picture"]["name"] for c in told["copies"]] == ["left/2.png", "left/1.png"]
    assert told["copies"][1]["what"] == "crop 62 %, mirrored"


def test_the_map_is_the_same_each_time_and_in_bounds() -> None:
    rows = np.random.default_rng(0).standard_normal((40, 64))
    once = lay_out(rows)
    assert np.array_equal(once, lay_out(rows))
    assert (once.min(), once.max()) == (0, 1)
    for n in (1, 2, 3, 9):
        few = lay_out(rows[:n])
        assert few.shape == (n, 2)
        assert np.isfinite(few).all()
    assert np.isfinite(lay_out(np.ones((12, 4)))).all()


def test_folders_of_one_name_get_names_of_their_own() -> None:
    named = images.name_folders(["/a/photos", "/b/photos", "samples"])
    assert list(named) == ["photos", "photos (2)", "samples (2)"]


# ── sets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def albums(session: Session, client: httpx.Client, send: Send) -> Any:
    """Two albums of three; the metric is made up, as learning it takes seconds."""
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((1280, 4)))[0]
    made_up = SimpleNamespace(project=lambda X: [x @ axes for x in X], M0_=np.diag([4.0, 1, 1, 0]))
    session.tab("sets")._metric = made_up
    ids = [send(scene(i))["id"] for i in (1, 2, 3)]
    plain = result_of(client, "api/sets/compare", {"a": ids, "b": [ids[2], ids[0], ids[1]]})
    assert [m["name"] for m in plain["metrics"]] == ["identity"]
    return result_of(client, "api/sets/learn", {"key": plain["key"]})


def test_a_plan_carries_each_picture_to_its_copy(client: httpx.Client, albums: dict[str, Any]) -> None:
    assert [m["name"] for m in albums["metrics"]] == ["identity", "learned"]
    gamma, scale = albums["gamma"], albums["scale"]
    assert scale["percentile"] < 5, "the same three photos"
    assert scale["sentence"].startswith("nearer than 9")
    assert gamma["low"] < gamma["auto"] < gamma["high"]
    sharp = client.post(
        "api/sets/plan", json={"key": albums["key"], "gamma": gamma["low"], "metric": "identity"}
    ).json()
    assert np.allclose(sharp["plan"], np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]]) / 3, atol=0.02)
    assert sharp["converged"]
    blurred = client.post("api/sets/plan", json={"key": albums["key"], "gamma": gamma["high"]}).json()
    assert np.allclose(blurred["plan"], 1 / 9, atol=0.03)
    assert blurred["metric"] == "identity"
    auto = client.post("api/sets/plan", json={"key": albums["key"], "gamma": None, "metric": "learned"}).json()
    assert auto["gamma"] == pytest.approx(gamma["auto"])
    assert np.asarray(auto["plan"]).sum(0) == pytest.approx([1 / 3] * 3, abs=1e-4)


def test_a_learned_metric_is_kept_and_a_damaged_one_is_learned_again(
    session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tab, learned = sets.Tab(session.store, tmp_path, Given()), []
    X = [Signature(np.random.default_rng(i).normal(size=(3, 4)) + i // 3) for i in range(6)]
    metric = WassersteinLMNN(multilevel=False, k_targets=1, max_iter=1, rounds=1, rho0=0.1).fit(X, [0, 0, 0, 1, 1, 1])
    monkeypatch.setattr(tab, "_learn", lambda work: learned.append(work) or metric)
    for damage in (None, b"damaged"):
        for file in tmp_path.glob("sets-*.safetensors") if damage else ():
            file.write_bytes(damage or b"")
        for _ in range(2):
            tab._metric = None  # as a new session would find it
            assert np.array_equal(tab._learned(None).M0_, metric.M0_)  # type: ignore[arg-type]
    assert len(learned) == 2


# ── distributions ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def opened(session: Session, client: httpx.Client) -> Iterator[list[dict[str, Any]]]:
    """A small bank and a short curve."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "LATENTS", 32)
        patch.setattr(distributions, "SHARD", 32)
        patch.setattr(distributions, "RHOS", (-1.0, 0.0, 1.0))
        patch.setattr(distributions, "MEASURED", 80)
        patch.setattr(distributions, "REFERENCE", 80)
        first = result_of(client, "api/distributions/open", {"name": "fashion"})
        assert first["curve"] == []
        yield lines_of(client, "api/distributions/measure", {"key": first["key"]})


def test_a_generator_is_opened_and_sampled(client: httpx.Client, opened: list[dict[str, Any]]) -> None:
    result = opened[-1]["result"]
    assert (result["n"], result["rho"], result["psi"]) == (32, [-5, 5], [0.3, 1])
    assert [p["rho"] for p in result["curve"]] == [-1, 0, 1]
    assert all(0 <= p[name] <= 1 for p in result["curve"] for name in ("precision", "recall", "ess"))
    assert result["curve"][1]["ess"] == pytest.approx(1)
    assert "the generator itself" in result["words"]
    assert next(line["result"]["curve"] for line in opened if line["state"] == "partial") == []
    assert load(client, result["modes"]).shape == load(client, result["antimodes"]).shape
    sheets = {}
    for rho, psi, seed in ((0, 1, 0), (0, 1, 1), (0, 0.5, 0), (4, 1, 0)):
        fields = {"key": result["key"], "rho": rho, "psi": psi, "seed": seed, "n": 9}
        said = client.post("api/distributions/grid", json=fields).json()
        sheets[rho, psi, seed] = said["image"]
        assert 0 < said["ess"] <= 1 + 1e-9
    assert len(set(sheets.values())) == 4
    data = base64.b64decode(sheets[0, 1, 0].removeprefix("data:image/png;base64,"))
    assert Image.open(io.BytesIO(data)).size == (260, 260)
    point = client.post("api/distributions/point", json={"key": result["key"], "rho": 0, "psi": 0.4}).json()
    assert point["precision"] > result["curve"][1]["precision"] - 0.1
    assert point["recall"] < result["curve"][1]["recall"]


@pytest.mark.parametrize(
    ("path", "field", "values"),
    [
        ("pixels/point", "x", (-1e7, 1e9, "5", True, [5], None)),
        ("sets/plan", "gamma", (0, 1e300, "auto")),
        ("sets/plan", "metric", ("x", 3)),
        ("distributions/grid", "rho", (6, None)),
        ("distributions/grid", "psi", (0,)),
        ("distributions/grid", "n", (0, 101, 1.5)),
        ("distributions/grid", "seed", (-1, 1e20)),
        *((path, "key", ("x",)) for path in ("pixels/point", "sets/plan", "distributions/grid")),
    ],
)
def test_a_field_out_of_bounds_is_named(
    client: httpx.Client, aligned: Any, albums: Any, opened: Any, path: str, field: str, values: Any
) -> None:
    keys = {"pixels": aligned["key"], "sets": albums["key"], "distributions": opened[-1]["result"]["key"]}
    for value in values:
        fields = {"key": keys[path.partition("/")[0]], "rho": 0, field: value}
        answer = client.post(f"api/{path}", json=fields)
        assert answer.status_code == (404 if field == "key" else 422)
        assert field == "key" or answer.json()["error"].startswith(f"{field}: expected")


PROGRAM = """
import torch
from likewise.distributions import Generator, Normal

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 3 * 16 * 16), torch.nn.Sigmoid(), torch.nn.Unflatten(1, (3, 16, 16)))
pictures = Generator(net, Normal(3))
numbers = Generator(torch.nn.Linear(3, 5), Normal(3))
"""


@pytest.mark.parametrize("name", ["pictures", "numbers"])
def test_a_generator_of_ones_own_is_measured_against_ones_own_pictures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in {"OWN_LATENTS": 24, "SHARD": 12, "MEASURED": 20, "RHOS": (0.0, 1.0)}.items():
        monkeypatch.setattr(distributions, constant, value)
    media.write_text(tmp_path / f"own_{name}.py", PROGRAM)
    for i, noise in enumerate(np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)):
        media.write_image(tmp_path / "real" / f"{i}.png", noise)
    own = f"{tmp_path / f'own_{name}.py'}:{name}"
    with answering(Session(Given(generator=own, real=tmp_path / "real"), cache=tmp_path)) as client:
        assert client.get("api/distributions/generators").json()[0]["name"] == own
        last = lines_of(client, "api/distributions/open", {"name": own})[-1]
        if last["state"] == "done":
            last = lines_of(client, "api/distributions/measure", {"key": last["result"]["key"]})[-1]
        if name == "numbers":
            assert (last["state"], "image" in last["error"]) == ("failed", True)
            return
        assert last["state"] == "done", last
        result = last["result"]
        assert (result["n"], [p["rho"] for p in result["curve"]]) == (24, [0, 1])
        assert str(tmp_path / "real") in result["words"]
        grid = client.post("api/distributions/grid", json={"key": result["key"], "rho": -1, "psi": 0.7, "n": 4}).json()
        assert grid["image"].startswith("data:image/png;base64,")
        point = client.post("api/distributions/point", json={"key": result["key"], "rho": 0, "psi": 0.5}).json()
        assert point["frechet"] > 0


# ── nonsense ──────────────────────────────────────────────────────────────────────────────────────────────────────

NOT_OBJECTS = (b"", b"{", b"[1]", b'"x"', b'{"key": NaN}', b'{"radius": Infinity}', b"\xff\xfe", b"[" * 5000, b"null")
NOT_THERE = ("pictures/x/view", "pictures/x/large", "files/x.jpg", "runs/x")


@pytest.mark.parametrize(
    ("path", "data", "status", "said"),
    [
        *(("api/sets/plan", data, 400, "the request") for data in NOT_OBJECTS),
        *((path, b"[NaN", 400, "the request") for path in BODIES),
        ("api/sets/plan", b" " * 300_000, 413, "the request is longer"),
        *((f"api/{path}", None, 404, "") for path in NOT_THERE),
    ],
)
def test_what_is_refused(client: httpx.Client, path: str, data: bytes | None, status: int, said: str) -> None:
    answer = client.get(path) if data is None else client.post(path, content=data)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})
    assert answer.json()["error"].startswith(said)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("pixels/compare", {"a": "SMALL", "b": "SMALL"}, "a: "),
        *(
            ("sets/compare", {"a": ids, "b": ["x"]}, f"a: expected a list of 1 to 100 images, got {got}")
            for ids, got in (([], "0"), (["x"] * 101, "101"), ("x", '"x"'))
        ),
        ("distributions/open", {"name": "os:system"}, "this generator is not here"),
        ("images/search", {"source": "samples", "query": "x"}, "source: samples is not indexed yet"),
        ("images/search", {"source": None, "query": "x"}, "source: expected text of 1 to 200 characters, got nothing"),
        ("images/search", {"source": True, "query": "x"}, "source: expected text of 1 to 200 characters, got true"),
    ],
)
def test_a_job_that_cannot_be_done_says_why(
    client: httpx.Client, send: Send, path: str, fields: dict[str, Any], said: str
) -> None:
    small = send(np.zeros((20, 20, 3), dtype=np.uint8))["id"]
    given = {name: small if value == "SMALL" else value for name, value in fields.items()}
    last = lines_of(client, f"api/{path}", given)[-1]
    assert (last["state"], last["error"][: len(said)]) == ("failed", said)


def test_sample_albums_and_generators(client: httpx.Client) -> None:
    albums = client.get("api/sets/samples").json()["albums"]
    assert [(a["name"], len(a["pictures"])) for a in albums] == [("monday", 8), ("friday", 8)]
    assert load(client, albums[0]["pictures"][0]["thumb"]).shape == (240, 240, 3)
    assert [g["name"] for g in client.get("api/distributions/generators").json()] == ["fashion", "fashion-vae"]


@pytest.mark.slow
def test_sample_pairs_are_each_time_the_same_images(client: httpx.Client) -> None:
    pairs = client.get("api/pixels/samples").json()
    assert {load(client, pair[side]["thumb"]).shape[2] for pair in pairs for side in ("a", "b")} == {3}
    assert (len(pairs), pairs) == (3, client.get("api/pixels/samples").json())


def test_an_image_that_was_deleted_meanwhile_is_not_found(gallery: Any, folder: Path, tmp_path: Path) -> None:
    client, opened = gallery
    one = opened["pictures"][9]
    file = folder / one["name"]
    os.rename(file, tmp_path / "elsewhere")
    try:
        answer = client.get(one["url"])
        assert answer.status_code == 404
    finally:
        os.rename(tmp_path / "elsewhere", file)


@pytest.mark.slow
def test_a_bank_whose_harvest_was_interrupted_resumes(session: Session, tmp_path: Path) -> None:
    """A server that went away in the middle of the larger bank must not bar the next one from opening it."""

    class Watched:
        def __init__(self, limit: int) -> None:
            self.left = limit

        def report(self, words: str, done: float | None = None) -> None:
            self.left -= done is not None
            if self.left < 0:
                raise Cancelled

    tab, opened = distributions.Tab(session.store, tmp_path, Given()), Opened("fashion", pretrained("fashion"), None)

    def harvested(n: int, limit: int = 99) -> int:
        return len(tab._bank(Watched(limit), opened, n))  # type: ignore[arg-type]

    assert harvested(64) == 64
    with pytest.raises(Cancelled):
        harvested(192, limit=1)
    assert harvested(64) == 64
    assert harvested(192) == 192
