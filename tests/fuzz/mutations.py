"""What can be wrong with bytes, text and JSON: seeded edits that know nothing of a format beyond that.

A mutation is a function of the old bytes and a random generator to new bytes; the same seed gives the same file.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
Mutation = Callable[[bytes, Rng], bytes]

EXTREMES = (0, 1, 2**7 - 1, 2**8 - 1, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)
NUMBERS = (0, -1, 1, 0.5, -0.0, 20_000, 2**31, 2**53 + 1, 2**63, 2**64, 10**18, -(10**18), 10**400, 1e308)
WORDS: tuple[str, ...] = (
    *("", ".", "..", "../../etc/passwd", "/etc/passwd", "a/../../b", "C:\\x", "a\0b", "a\nb", "\ud800", "é" * 300),
    *("x" * 5000, "NaN", "-1", "os", "__class__", "%s%n", "{0}", "true", "<f8", "|O", "float64", "auto"),
)
VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"a": 1}, [1, 2, 3], [None], float("nan"), float("inf"))


def pick(rng: Rng, among: Any) -> Any:
    """One of them, as the Python object that it is."""
    return among[int(rng.integers(len(among)))]


# --------------------------------------------------------------------------------------------------------------- bytes


def flipped(data: bytes, rng: Rng) -> bytes:
    """One to eight bits the other way."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 9))):
        out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def scribbled(data: bytes, rng: Rng) -> bytes:
    """A run of random bytes, or of one byte, over what was there."""
    at, n = int(rng.integers(len(data))), int(rng.integers(1, 33))
    return data[:at] + pick(rng, (rng.bytes(n), b"\0" * 8 * n, b"\xff" * n, b" " * n)) + data[at + n :]


def extreme(data: bytes, rng: Rng) -> bytes:
    """A field of 1, 2, 4 or 8 bytes, mostly near the front where headers are, at a limit of its type."""
    size = pick(rng, (1, 2, 4, 8))
    reach = len(data) if rng.random() < 0.4 else min(len(data), 256)
    at = int(rng.integers(max(1, reach)))
    at -= at % size if rng.random() < 0.5 else 0
    value = pick(rng, EXTREMES) % 2 ** (8 * size)
    return data[:at] + value.to_bytes(size, pick(rng, ("little", "big"))) + data[at + size :]


def real(data: bytes, rng: Rng) -> bytes:
    """A floating-point field of NaN, infinity, 0, or the largest and least there are."""
    form = pick(rng, ("<f", "<d", ">f", ">d"))
    value = pick(rng, (float("nan"), float("inf"), float("-inf"), 0.0, -1.0, 3e38, 1e-45))
    at = int(rng.integers(len(data)) // 4 * 4)
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


def cut(data: bytes, rng: Rng) -> bytes:
    """The file without its end, its beginning, or a piece between."""
    a, b = sorted(int(i) for i in rng.integers(0, len(data) + 1, 2))
    return pick(rng, (data[:a], data[b:], data[:a] + data[b:]))


def doubled(data: bytes, rng: Rng) -> bytes:
    """A piece twice, or many times."""
    a, b = sorted(int(i) for i in rng.integers(0, len(data) + 1, 2))
    b = min(b, a + 4096)
    return data[:b] + data[a:b] * int(rng.integers(1, 20)) + data[b:]


BYTEWISE: tuple[Mutation, ...] = (flipped, scribbled, extreme, extreme, real, cut, doubled)


def bytewise(data: bytes, rng: Rng) -> bytes:
    """One to three of the above."""
    for _ in range(int(rng.integers(1, 4))):
        data = pick(rng, BYTEWISE)(data or b"\0", rng)
    return data


def emptied(data: bytes, rng: Rng) -> bytes:
    """Nothing, or next to nothing."""
    return pick(rng, (b"", b"\0", b"\n", data[:1], data[:8], rng.bytes(64)))


# ---------------------------------------------------------------------------------------------------------------- text


def text(data: bytes, rng: Rng) -> bytes:
    """Lines and words of a text file: numbers replaced, words replaced, lines dropped, doubled, joined, swapped."""
    words = data.decode("utf-8", "replace")
    for _ in range(int(rng.integers(1, 4))):
        words = pick(rng, (_number, _word, _line, _line, _separator))(words, rng)
    return words.encode("utf-8", "surrogatepass") if rng.random() < 0.9 else words.encode("utf-16", "surrogatepass")


def _replaced(words: str, pattern: str, new: str, rng: Rng) -> str:
    result = list(re.finditer(pattern, words))
    if not result:
        return words + new
    one = result[int(rng.integers(len(result)))]
    return words[: one.start()] + new + words[one.end() :]


def _number(words: str, rng: Rng) -> str:
    return _replaced(
        words, r"-?\d+(\.\d+)?(e-?\d+)?", pick(rng, [str(n) for n in NUMBERS] + ["nan", "inf", "1e999"]), rng
    )


def _word(words: str, rng: Rng) -> str:
    return _replaced(words, r"[A-Za-z_./-]+", pick(rng, WORDS), rng)


def _separator(words: str, rng: Rng) -> str:
    return _replaced(words, r"[\s,;:]", pick(rng, ("", " ", ",", ";", ":", "\n", "\0", "\t\t")), rng)


def _line(words: str, rng: Rng) -> str:
    lines = words.split("\n")
    i, j = (int(k) for k in rng.integers(0, len(lines), 2))
    what = int(rng.integers(5))
    if what == 0:
        del lines[i]
    elif what == 1:
        lines.insert(j, lines[i])
    elif what == 2:
        lines[i], lines[j] = lines[j], lines[i]
    elif what == 3:
        lines[i] += lines[j]
    else:
        lines[i] = lines[i][: int(rng.integers(len(lines[i]) + 1))]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------- JSON


def edited(value: Any, rng: Rng, edits: int | None = None) -> Any:
    """A JSON value with one to three places changed: gone, of another type, a huge or negative number, a bad name."""
    for _ in range(edits or int(rng.integers(1, 4))):
        value = _changed(value, rng)
    return value


def _changed(value: Any, rng: Rng) -> Any:
    """The value with one place of it, at any depth, replaced, removed, doubled or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = pick(rng, list(value))
        if rng.random() < 0.3:
            return _without(value, key, rng)
        return {**value, key: _changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = int(rng.integers(len(value)))
        if rng.random() < 0.3:
            return pick(rng, (value[:i] + value[i + 1 :], value[:i] + value[i:] * 2, value[::-1], value[:1] * 500))
        return [*value[:i], _changed(value[i], rng), *value[i + 1 :]]
    return _other(value, rng)


def _without(value: dict[str, Any], key: str, rng: Rng) -> dict[str, Any]:
    rest = {k: v for k, v in value.items() if k != key}
    if rng.random() < 0.5:
        return rest
    return {**rest, pick(rng, WORDS): value[key]} if rng.random() < 0.7 else {**value, "unknown": 1}


def _other(value: Any, rng: Rng) -> Any:
    kind = rng.random()
    if isinstance(value, int | float) and not isinstance(value, bool) and kind < 0.7:
        return pick(rng, (*NUMBERS, value + 1, value - 1, -value, value * 1000, float("nan"), float("inf")))
    if isinstance(value, str) and kind < 0.7:
        return pick(rng, (*WORDS, value + "x", value[:-1], value.upper()))
    return pick(rng, (*VALUES, *NUMBERS, *WORDS, nested(int(rng.integers(2, 400)))))


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def to_json(value: Any) -> bytes:
    """JSON as Python writes it: NaN and infinity too; a lone surrogate is escaped."""
    return json.dumps(value).encode()


def as_json(data: bytes, rng: Rng) -> bytes:
    """A JSON file edited as JSON; now and then nested deeper than a parser goes."""
    if rng.random() < 0.05:
        return pick(rng, (b"[" * 100_000, b'{"a":' * 100_000, b"[" * 990 + b"]" * 990, b"1" * 5000, b'"\xff\xfe"'))
    try:
        return to_json(edited(json.loads(data), rng))
    except ValueError:
        return bytewise(data, rng)


def as_json_lines(data: bytes, rng: Rng) -> bytes:
    """One line of JSON lines edited."""
    lines = data.split(b"\n")
    i = int(rng.integers(len(lines)))
    lines[i] = as_json(lines[i], rng) if lines[i] else pick(rng, (b"{}", b"[]", b"null", b"[" * 50_000))
    return b"\n".join(lines)
