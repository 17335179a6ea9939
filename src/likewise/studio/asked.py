"""What a request asks for: its JSON body, and each field of it checked against its bounds before any work is done."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from likewise.errors import InputError, LikewiseError

MOST_BODY = 256 << 10
"""Bytes of a JSON body."""
MOST_ID = 64
Fields = Mapping[str, Any]


class Refused(LikewiseError):
    """A request that is answered by a status and a sentence."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Gone(Refused):
    """An id that nothing is kept under: it never was, or it was the oldest and made room."""

    def __init__(self, what: str) -> None:
        super().__init__(404, f"{what} is not here any more, or never was; choose it again")


async def body(request: Request) -> Fields:
    """The JSON object that was sent; what is too long, not JSON, not an object, or holds NaN is refused."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > MOST_BODY:
            raise Refused(413, f"the request is longer than {MOST_BODY >> 10} kB")
    try:
        found = json.loads(data, parse_constant=_not_a_number)
    except (ValueError, RecursionError):
        raise Refused(400, "the request is not JSON as it should be") from None
    if not isinstance(found, dict):
        raise Refused(400, f"the request should be a JSON object, and is a {type(found).__name__}")
    return found


def _not_a_number(word: str) -> None:
    raise ValueError(word)


def text(fields: Fields, name: str, most: int = 200) -> str:
    """A field that is text of 1 to `most` characters."""
    value = fields.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= most:
        raise InputError(f"{name}: expected text of 1 to {most} characters, got {_shown(value)}")
    return value


def identity(fields: Fields, name: str) -> str:
    """A field that is an id."""
    return text(fields, name, MOST_ID)


def identities(fields: Fields, name: str, most: int) -> list[str]:
    """A field that is a list of 1 to `most` ids."""
    value = fields.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        got = f"{len(value)}" if isinstance(value, list) else _shown(value)
        raise InputError(f"{name}: expected a list of 1 to {most} pictures, got {got}")
    return [identity({name: item}, name) for item in value]


def number(fields: Fields, name: str, low: float, high: float, default: float | None = None) -> float:
    """A field that is a number from `low` to `high`; `default` where it is missing."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise InputError(f"{name}: expected a number from {low:g} to {high:g}, got {_shown(value)}")
    return float(value)


def whole(fields: Fields, name: str, low: int, high: int, default: int | None = None) -> int:
    """A field that is a whole number from `low` to `high`; `default` where it is missing."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name}: expected a whole number from {low} to {high}, got {_shown(value)}")
    return value


def queried(request: Request, name: str) -> float:
    """A number of the query string."""
    given = request.query_params.get(name, "")
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name}: expected a number, got {_shown(given)}")
    return value


def _shown(value: Any) -> str:
    said = "nothing" if value is None or value == "" else repr(value)
    return said if len(said) <= 40 else said[:38] + "…"
