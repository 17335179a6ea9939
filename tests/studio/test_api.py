"""The API for other programs: what it answers, what it refuses, and that its document says the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from likewise.studio import api, uploads
from likewise.studio.app import Given, Session, _routes
from likewise.studio.requests import WRONG_ORIGIN, WRONG_TOKEN

from .conftest import TOKEN, answering, encoded, scene

DOCS = Path(__file__).resolve().parents[2] / "docs" / "http-api.md"
PHOTO = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def given(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    return Session(Given(folders=(str(folder),)), cache=tmp_path_factory.mktemp("indexes"))


@pytest.fixture(scope="module")
def ask(given: Session) -> Iterator[httpx.Client]:
    """A program that knows the token, and has it in a header."""
    with answering(given) as client:
        base = f"http://127.0.0.1:{client.base_url.port}/api/v1/"
        with httpx.Client(base_url=base, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=120) as made:
            yield made


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is what a JSON Schema says, as far as ours say anything."""
    if "$ref" in schema:
        return fits(value, api.SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "null": type(None)}
    wanted = schema.get("type", [])
    if wanted and not any(isinstance(value, kinds[k]) for k in ([wanted] if isinstance(wanted, str) else wanted)):
        return False
    if value not in schema.get("enum", [value]) or (isinstance(value, int) and value < schema.get("minimum", value)):
        return False
    if isinstance(value, list):
        return all(fits(item, schema.get("items", {})) for item in value)
    fields = schema.get("properties", {})
    return set(schema.get("required", ())) <= set(value if isinstance(value, dict) else ()) and all(
        fits(value[name], fields[name]) for name in fields
    )


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_photo_is_found_and_the_answer_is_as_documented(ask: httpx.Client, folder: Path) -> None:
    query = encoded(scene(7, 160)[4:, 4:])
    found = ask.post("search", params={"k": 3, "verify": 2}, content=query, headers={**PHOTO, "X-Name": "mine.png"})
    assert found.status_code == 200, found.text
    result = found.json()
    assert [hit["rank"] for hit in result["hits"]] == [1, 2, 3]
    assert result["hits"][0]["path"] == str(folder / "right" / "7.png")
    assert [hit["evidence"] is not None for hit in result["hits"]] == [True, True, False]
    assert result["query"] == ["mine.png"]
    assert fits(result, api.SCHEMAS["Result"])
    listed = ask.get("collections").json()
    assert listed == [{"name": folder.name, "count": 10}, {"name": "samples", "count": None}]
    assert fits(listed, api.SCHEMAS["Collections"])
    named = ask.post("search", params={"source": folder.name, "k": 1, "verify": 0}, content=query, headers=PHOTO).json()
    assert [hit["path"] for hit in named["hits"]] == [result["hits"][0]["path"]]


def test_two_photos_are_compared(ask: httpx.Client) -> None:
    whole = scene(1, 256)
    files = {"b": ("b.png", encoded(whole[8:, 8:])), "a": ("a; name=x.png", encoded(whole))}
    same = ask.post("compare", files=files)
    assert same.status_code == 200, same.text
    assert fits(same.json(), api.SCHEMAS["Hit"])
    assert not fits({**same.json(), "verdict": "maybe"}, api.SCHEMAS["Hit"])
    other = ask.post("compare", files={**files, "a": ("a.png", encoded(scene(2, 256)))}).json()
    assert same.json()["evidence"]["inliers"] > other["evidence"]["inliers"]
    assert same.json()["probability"] > other["probability"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
def test_the_lines_of_the_docs_run(ask: httpx.Client, tmp_path: Path) -> None:
    lines = [
        line for block in re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), re.M | re.S) for line in block.splitlines()
    ]
    assert lines[0].startswith("likewise studio photos/ --no-open > address ")
    (tmp_path / "address").write_text(f"http://127.0.0.1:{ask.base_url.port}/{TOKEN}/\n")
    for name, seed in (("query.jpg", 7), ("a.jpg", 1), ("b.jpg", 1)):
        (tmp_path / name).write_bytes(encoded(scene(seed, 160), "JPEG"))
    for line in lines[2:]:
        done = subprocess.run(
            ["bash", "-ec", f"{lines[1]}\n{line}"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        assert done.stdout.startswith(("{", "["))
    assert len(lines) == 6


# ── the document ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_document_has_every_route_and_every_field(ask: httpx.Client, given: Session) -> None:
    told = ask.get("openapi.json").json()
    assert told["openapi"] == "3.1.0"
    documented = {(method.upper(), path) for path, item in told["paths"].items() for method in item}
    served = {(m, r.path) for r in _routes(given) if r.path.startswith("/api/v1/") for m in r.methods - {"HEAD"}}
    assert served - documented == {("GET", "/api/v1/openapi.json")}
    assert documented <= served
    page = DOCS.read_text()
    for path, item in told["paths"].items():
        for method, one in item.items():
            assert f"`{method.upper()} {path}`" in page
            assert all(f"`{p['name']}`" in page for p in one["parameters"])
            assert (
                one["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                in api.SCHEMAS
            )
    assert told["security"] == [{"token": []}]


def test_bounds_are_those_of_the_document(ask: httpx.Client) -> None:
    (operation,) = (one for one in api.OPERATIONS if one.path == "search")
    for name, schema in operation.parameters.items():
        if schema["type"] == "integer":
            wrong = [schema["minimum"] - 1, schema["maximum"] + 1, "x", "1.5", "", "9" * 400]
            assert ask.post("search", params={name: schema["minimum"]}, headers=PHOTO).status_code == 422  # no photo
        else:
            wrong = ["", "x" * (schema["maxLength"] + 1)]
        for value in wrong:
            refused = ask.post("search", params={name: value}, headers=PHOTO)
            assert (refused.status_code, refused.json()["error"].split(":")[0]) == (422, name)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "sent", "status", "said"),
    [
        ("search", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "send the bytes of one photo"),
        ("search", {"data": {"path": "/etc/passwd"}}, 415, "send the bytes of one photo"),
        ("search", {"content": b"x", "headers": PHOTO}, 422, "image: not a picture"),
        ("search?source=other", {"content": encoded(scene()), "headers": PHOTO}, 404, "this collection is not here"),
        ("search?path=x", {"content": b"x", "headers": PHOTO}, 422, "path: expected one of source, k, verify"),
        ("search?k=1&k=2", {"content": b"x", "headers": PHOTO}, 422, "k: expected one of source, k, verify, once"),
        ("compare", {"content": b"x", "headers": PHOTO}, 415, "send two photos in the fields a and b"),
        ("compare", {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, 415, "send two photos"),
        ("compare", {"content": b"x", "headers": {"Content-Type": f"{api.FORM}; boundary=é".encode()}}, 422, ": exp"),
        ("compare", {"files": {"a": encoded(scene())}}, 422, "b: expected a photo in a field of this name"),
        ("compare", {"files": {"a": encoded(scene()), "b": b"GIF89a"}}, 422, "b: damaged or unsupported GIF"),
        ("compare", {"files": {"a": b"", "b": b""}}, 422, "a: not a picture"),
        ("nothing", {}, 405, "the request cannot be answered"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(
    ask: httpx.Client, path: str, sent: dict[str, Any], status: int, said: str
) -> None:
    refused = ask.post(path, **sent)
    assert refused.status_code == status, refused.text
    assert said in refused.json()["error"]
    assert fits(refused.json(), api.SCHEMAS["Error"])


def test_a_photo_that_is_too_long_or_too_large_is_refused(ask: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PIXELS", 96 * 96 - 1)
    assert "make it smaller" in ask.post("search", content=encoded(scene()), headers=PHOTO).json()["error"]
    monkeypatch.setattr(uploads, "MAX_IMAGE", 1000)
    assert ask.post("search", content=b"x" * 1001, headers=PHOTO).status_code == 413
    assert ask.post("compare", files={"a": b"x" * 1001, "b": b"x" * 1001}).status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", f"Bearer {TOKEN[:-1]}")],
        [("Authorization", f"Bearer {TOKEN}x")],
        [("Authorization", f"Basic {TOKEN}")],
        [("Authorization", TOKEN)],
        [("Authorization", "Bearer")],
        [("Authorization", f"Bearer {TOKEN}"), ("Authorization", "Bearer x")],
    ],
)
def test_without_the_token_nothing_is_told(ask: httpx.Client, headers: list[tuple[str, str]]) -> None:
    for path in ("collections", "openapi.json", "nothing"):
        refused = httpx.get(f"{ask.base_url}{path}", headers=headers)
        assert (refused.status_code, refused.json()) == (403, {"error": WRONG_TOKEN})


def test_the_header_opens_the_api_alone_and_to_no_other_page(ask: httpx.Client) -> None:
    home = str(ask.base_url).removesuffix("api/v1/")
    for path in ("", "api/about", "api/v1", "index.html"):
        assert ask.get(home + path).status_code == 403
    assert ask.get("collections", headers={"Authorization": f"bearer {TOKEN}"}).status_code == 200
    assert ask.get("collections", headers={"Origin": "http://evil.example"}).json() == {"error": WRONG_ORIGIN}
    assert ask.get("collections", headers={"Host": "evil.example"}).status_code == 421
    assert httpx.get(f"{home}{TOKEN}/api/v1/collections").status_code == 200
    assert "content-security-policy" in ask.get("collections").headers
