"""The HTTP API for other programs: /api/v1, behind the guard of the page, with an OpenAPI document of its own.

An operation is declared once, in OPERATIONS: its route, the check of its parameters and its part of the document
follow from that.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from likewise import media, search
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra, RequestError
from likewise.plot.style import fit
from likewise.studio import uploads
from likewise.studio.requests import API, Fields, Json, Task, text, whole
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.studio.app import Session

SIDE = 1024
"""The longest side at which a photo that was sent is looked for and compared."""
FORM = "multipart/form-data"
REFUSED = "why, in a sentence: 403 token, 404 collection, 413 length, 415 type, 422 photo or parameter, 503 too much"


class Operation(NamedTuple):
    """A method and a path below /api/v1; the JSON Schemas of what may be asked and of what comes back."""

    method: str
    path: str
    words: str
    answer: Callable[[Session, Request, Fields], Awaitable[Any]]
    result: Mapping[str, Any]
    parameters: Mapping[str, Mapping[str, Any]] = {}
    body: Mapping[str, Any] = {}

    def read(self, request: Request) -> Fields:
        """The parameters of a request, checked; one that there is not, or that comes twice, is refused."""
        given, fields = request.query_params, dict[str, Any]()
        for name in given:
            if name not in self.parameters or len(given.getlist(name)) > 1:
                known = f"one of {', '.join(self.parameters)}, once" if self.parameters else "no parameters"
                raise InputError(f"{name[:40]}: expected {known}")
        for name, schema in self.parameters.items():
            value = given.get(name)
            if schema["type"] == "integer":
                number = int(value) if value is not None and re.fullmatch(r"-?[0-9]{1,9}", value) else value
                fields[name] = whole({name: number}, name, schema["minimum"], schema["maximum"], schema["default"])
            elif value is not None:
                fields[name] = text(given, name)
        return fields

    def describe(self) -> dict[str, Any]:
        """Its part of the document."""
        return {
            "summary": self.words,
            "operationId": self.path,
            "parameters": [{"name": n, "in": "query", "schema": schema} for n, schema in self.parameters.items()],
            "responses": {"200": _answer("the result", self.result), "default": _answer(REFUSED, _ref("Error"))},
            **({"requestBody": {"required": True, "content": _content(self.body)}} if self.body else {}),
        }


def routes(session: Session) -> list[Route]:
    """The routes of the API, and of its document."""

    def route(operation: Operation) -> Route:
        async def handler(request: Request) -> Response:
            return Json(await operation.answer(session, request, operation.read(request)))

        return Route(f"{API}{operation.path}", handler, methods=[operation.method])

    async def described(*_: Any) -> Any:
        return document()

    return [*map(route, OPERATIONS), route(Operation("GET", "openapi.json", "This document.", described, {}))]


def document() -> dict[str, Any]:
    """The API as an OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "likewise", "version": version("likewise")},
        "paths": {f"{API}{one.path}": {one.method.lower(): one.describe()} for one in OPERATIONS},
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def _collections(session: Session, request: Request, fields: Fields) -> Any:
    sources = await asyncio.to_thread(lambda: session.tab("images").sources())
    return [{"name": source["name"], "count": source["count"]} for source in sources]


async def _search(session: Session, request: Request, fields: Fields) -> Any:
    if not request.headers.get("content-type", "").startswith(("image/", "application/octet-stream")):
        raise RequestError(415, "send the bytes of one photo, with Content-Type: image/jpeg, say")
    async with uploads.receive(request, session.store, uploads.MAX_IMAGE) as file:
        data = file.read_bytes()

    def task(work: Any) -> Any:
        tab, photo = session.tab("images"), _photo(data, uploads.name_of(request))
        collection = tab.ready(work, {"source": fields.get("source", tab.sources()[0]["name"])})
        return collection.search(photo, fields["k"], verify=fields["verify"]).to_dict()

    return await _finish(session, task)


async def _compare(session: Session, request: Request, fields: Fields) -> Any:
    kind = request.headers.get("content-type", "")
    boundary = re.search(r'boundary="?([^";,\s]{1,70})', kind)
    if not kind.startswith(FORM) or boundary is None:
        raise RequestError(415, f"send two photos in the fields a and b of {FORM}")
    async with uploads.receive(request, session.store, 2 * uploads.MAX_IMAGE) as file:
        parts = _parts(file.read_bytes(), boundary[1].encode("latin-1"))
    for name in {"a", "b"} - parts.keys():
        raise InputError(f"{name}: expected a photo in a field of this name, got none")

    def task(work: Any) -> Any:
        return search.pair(_photo(parts["a"], "a"), _photo(parts["b"], "b")).to_dict()

    return await _finish(session, task)


def _parts(data: bytes, boundary: bytes) -> dict[str, bytes]:
    """The fields of a form by name: its boundary, by definition, stands in none of them."""
    parts = {}
    for part in (b"\r\n" + data).split(b"\r\n--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if name := re.search(rb'[; ]name="?([a-z]{1,20})"?\s*(?:;|\r\n|$)', head):
            parts[name[1].decode()] = content
    return parts


def _photo(data: bytes, name: str) -> Image:
    """The photo that was sent, its size bounded before it is decoded."""
    try:
        array = media.decode(data, name=name, most_pixels=uploads.MAX_PIXELS, side=SIDE)
    except (FileError, MissingExtra) as error:
        raise RequestError(422, str(error).replace("; raise most_pixels to read it", "; make it smaller")) from None
    return Image(fit(array, SIDE), name=name)


async def _finish(session: Session, task: Task) -> Any:
    """What a task gives when its turn in the queue has come."""
    outcome, last = list[Any](), b""

    def kept(work: Any) -> None:
        try:
            outcome.append(task(work))
        except LikewiseError as error:
            outcome.append(error)

    async for line in session.jobs.submit(kept, asyncio.get_running_loop()).lines():
        last = line
    value = outcome[0] if outcome else RequestError(500, json.loads(last)["error"])  # stopped, or a mistake of ours
    if isinstance(value, LikewiseError):
        raise value
    return value


# ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────────


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(fields), "properties": fields}


def _content(schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": schema} for kind, schema in schemas.items()}


def _answer(words: str, schema: Any) -> dict[str, Any]:
    return {"description": words, "content": _content({"application/json": schema})}


TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
WORD, OR_NONE = {"enum": ["same", "unsure", "different"]}, {"anyOf": [_ref("Evidence"), {"type": "null"}]}
SCHEMAS: dict[str, Any] = {
    "Error": _object(error=TEXT),
    "Collections": {"type": "array", "items": _object(name=TEXT, count={"type": ["integer", "null"]})},
    "Evidence": _object(matches=COUNT, inliers=COUNT, model={"type": ["string", "null"]}),
    "Hit": _object(path=TEXT, rank=COUNT, verdict=WORD, probability=NUMBER, distance=NUMBER, evidence=OR_NONE),
    "Result": _object(index=TEXT, seconds={"type": "object"}, hits={"type": "array", "items": _ref("Hit")}),
}
"""What comes back, by name; an object may hold more than what is promised here."""
SEARCH = {
    "source": {**TEXT, "description": "a collection's name; by default the first", "minLength": 1, "maxLength": 200},
    "k": {"type": "integer", "description": "how many hits", "minimum": 1, "maximum": 100, "default": 10},
    "verify": {"type": "integer", "description": "how many are verified", "minimum": 0, "maximum": 20, "default": 5},
}
PHOTO: dict[str, Any] = {"contentMediaType": "image/*"}
LISTED = "The collections that can be searched, and how many photos each has where that is known."
FOUND = "Photos of a collection that show what the photo shows that is sent, each with its evidence."
COMPARED = "Whether the photos in the fields a and b show the same, with the evidence."
OPERATIONS = (
    Operation("GET", "collections", LISTED, _collections, _ref("Collections")),
    Operation(
        "POST", "search", FOUND, _search, _ref("Result"), SEARCH, {"image/*": {}, "application/octet-stream": {}}
    ),
    Operation("POST", "compare", COMPARED, _compare, _ref("Hit"), {}, {FORM: _object(a=PHOTO, b=PHOTO)}),
)
"""Every operation."""
