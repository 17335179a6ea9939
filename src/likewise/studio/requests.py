"""What a request asks for: its JSON body, and each field of it checked against its bounds before any work is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from likewise.errors import InputError, RequestError

MAX_BODY = 256 << 10
"""Bytes of a JSON body."""
MAX_TEXT = 200
"""Characters of a text field; ids have 22."""
Fields = Mapping[str, Any]


def not_found(what: str) -> RequestError:
    """The error for an id that nothing is kept under: it never was, or it was the oldest and made room."""
    return RequestError(404, f"{what} is not here any more, or never was; choose it again")


async def read_json(request: Request) -> Fields:
    """The JSON object that was sent; what is too long, not JSON, not an object, or holds NaN is refused."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise RequestError(413, f"the request is longer than {MAX_BODY >> 10} kB")
    try:
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise RequestError(400, "the request is not valid JSON") from None
    if not isinstance(body, dict):
        raise RequestError(400, f"the request should be a JSON object, and is a {type(body).__name__}")
    return body


def _refuse_constant(word: str) -> None:
    raise ValueError(word)


def text(fields: Fields, name: str) -> str:
    """A field that is text of 1 to MAX_TEXT characters, such as an id."""
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise InputError(f"{name}: expected text of 1 to {MAX_TEXT} characters, got {_show(value)}")
    return value


def ids(fields: Fields, name: str, limit: int) -> list[str]:
    """A field that is a list of 1 to `limit` ids of images."""
    value = fields.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= limit:
        got = f"{len(value)}" if isinstance(value, list) else _show(value)
        raise InputError(f"{name}: expected a list of 1 to {limit} images, got {got}")
    return [text({name: item}, name) for item in value]


def number(fields: Fields, name: str, low: float, high: float, default: float | None = None) -> float:
    """A field that is a number from `low` to `high`; `default` where it is missing."""
    value = fields.get(name)
    if value is None and default is not None:
        return float(default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {_show(value)}")
    return float(value)


def whole(fields: Fields, name: str, low: int, high: int, default: int | None = None) -> int:
    """A field that is a whole number from `low` to `high`; `default` where it is missing."""
    value = number(fields, name, low, high, default)
    if not value.is_integer():
        raise InputError(f"{name}: expected a whole number from {low} to {high}, got {value:g}")
    return int(value)


def _show(value: Any) -> str:
    words = "nothing" if value is None or value == "" else repr(value)
    return words if len(words) <= 40 else words[:38] + "…"
