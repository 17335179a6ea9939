"""One declaration of a knob is its Python default, its command-line flag, its row in the docs and its bound check.

>>> @dataclass(frozen=True)
... class Settings:
...     gamma: float | str = knob("auto", "smoothing of the plan", above=0, choices=("auto",))
...     tol: float = knob(1e-6, "marginal error at which a solve stops", above=0, high=1)
...     def __post_init__(self) -> None:
...         check(self)

A scikit-learn estimator is the same: a dataclass (`eq=False, repr=False`, so that scikit-learn's own apply) whose
fields are knobs; the `__init__` that the dataclass makes has the explicit signature that `clone` and `get_params`
need, and `check(self)` is called in `fit`. Where the command line needs the knobs of an estimator, declare them in a
plain dataclass beside it and inherit: the flags then cost no import of scikit-learn.

Nothing heavy is imported here.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from likewise.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Knob:
    """What is known of one knob: `low ≤ x`, `above < x`, `x ≤ high` bind its numbers, `choices` its strings."""

    name: str
    default: Any
    help: str
    kinds: tuple[Any, ...]
    low: float | None = None
    above: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] | None = None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.strip("_").replace("_", "-").lower()

    @property
    def domain(self) -> str:
        """What it accepts, in words: `number > 0 or 'auto'`. Errors, --help and the docs all say it like this."""
        parts = [_KIND_NAMES[k] + self._bounds() for k in self.kinds if k in (int, float)]
        if self.choices:
            parts.append(" or ".join(repr(c) for c in self.choices))
        parts += [_KIND_NAMES[k] for k in self.kinds if k in (bool, type(None)) or (k is str and not self.choices)]
        parts += [getattr(k, "__name__", str(k)) for k in self.kinds if k not in _KIND_NAMES and k is not Any]
        return " or ".join(parts) or "anything"

    def _bounds(self) -> str:
        signs = ((">", self.above), ("≥", self.low), ("≤", self.high))
        text = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
        return f" {text}" if text else ""

    def accepts(self, value: Any) -> bool:
        """Whether the value is of a right type, within the bounds or among the choices."""
        if self.choices is not None and any(_same(value, c) for c in self.choices):
            return True
        return any(self._fits(value, kind) for kind in self.kinds)

    def _fits(self, value: Any, kind: Any) -> bool:
        if kind is Any:
            return True
        if kind is bool:
            return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
        if kind is int or kind is float:
            tower = numbers.Integral if kind is int else numbers.Real
            return not isinstance(value, bool) and isinstance(value, tower) and self._within(float(value))
        if kind is str:
            return isinstance(value, str) and self.choices is None
        return isinstance(value, kind)

    def _within(self, x: float) -> bool:
        return (
            math.isfinite(x)
            and (self.low is None or x >= self.low)
            and (self.above is None or x > self.above)
            and (self.high is None or x <= self.high)
        )

    def check(self, value: Any) -> None:
        """Raise a ConfigError that names the knob, what it accepts and what came."""
        if self.accepts(value):
            return
        near = difflib.get_close_matches(str(value), [str(c) for c in self.choices or ()], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"{self.name}: expected {self.domain}, got {value!r}{hint}")

    def parse(self, text: str) -> Any:
        """The value that a string on the command line stands for, checked."""
        value = next(self._readings(text), text)
        self.check(value)
        return value

    def _readings(self, text: str) -> Iterator[Any]:
        yield from (c for c in self.choices or () if str(c) == text)
        if type(None) in self.kinds and text.lower() == "none":
            yield None
        for kind in (int, float):
            if kind in self.kinds:
                try:
                    yield kind(text)
                except ValueError:
                    continue
        if str not in self.kinds:
            yield from (kind(text) for kind in self.kinds if isinstance(kind, type) and kind not in _KIND_NAMES)


_KIND_NAMES: dict[Any, str] = {int: "integer", float: "number", str: "text", bool: "True or False", type(None): "None"}


def _same(value: Any, choice: Any) -> bool:
    """Equal and of one type; True is not 1, and NumPy's str_ is a str."""
    return isinstance(value, type(choice)) and isinstance(value, bool) == isinstance(choice, bool) and value == choice


def knob(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """Declare a knob as a field of a dataclass; the field's annotation gives its type.

    Numbers must be ≥ low, > above, ≤ high; strings must be among choices (a `float | str` knob has both).
    A `Literal` annotation gives the choices by itself.
    """
    bounds = {"low": low, "above": above, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata={"knob": {"help": help, **bounds}})


def knobs(cls: type) -> tuple[Knob, ...]:
    """The knobs of a dataclass, in the order of their declaration."""
    hints = typing.get_type_hints(cls)
    return tuple(
        _read(field.name, field.default, hints[field.name], field.metadata["knob"])
        for field in dataclasses.fields(cls)
        if "knob" in field.metadata
    )


def _read(name: str, default: Any, hint: Any, said: Mapping[str, Any]) -> Knob:
    """The knob that a field declares; a default that breaks its own bounds is refused here."""
    kinds, literals = _kinds(hint)
    choices = tuple(said["choices"]) if said["choices"] is not None else (literals or None)
    bounds = {key: said[key] for key in ("low", "above", "high")}
    made = Knob(name, default, said["help"], kinds, choices=choices, **bounds)
    made.check(default)
    return made


def _kinds(hint: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The plain types of an annotation, and the values of its Literals."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return (), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [_kinds(part) for part in typing.get_args(hint)]
        return sum((k for k, _ in parts), ()), sum((c for _, c in parts), ())
    return (origin or hint,), ()


def check(obj: Any) -> None:
    """Check every knob of a dataclass instance; ConfigError names the knob, what it accepts and the value."""
    for k in knobs(type(obj)):
        k.check(getattr(obj, k.name))


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance from named values (a run directory's JSON, say), checked; an unknown name is a ConfigError."""
    known = [k.name for k in knobs(cls)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{name}: {cls.__name__} has no such knob; {hint}")
    made = cls(**values)
    check(made)
    return made


def options(cls: type, *names: str) -> Callable[[F], F]:
    """A click decorator: one --flag a knob of cls (or of those named), with the same default, words and check."""
    import click

    class KnobType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
        def __init__(self, knob: Knob) -> None:
            self.knob = knob
            self.name = knob.name

        def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
            return _metavar(self.knob)

        def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
            try:
                return self.knob.parse(value) if isinstance(value, str) else value
            except (ConfigError, ValueError) as error:
                self.fail(str(error), param, ctx)

        def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
            from click.shell_completion import CompletionItem

            return [CompletionItem(c) for c in map(str, self.knob.choices or ()) if c.startswith(incomplete)]

    def one(k: Knob) -> Callable[[F], F]:
        if k.kinds == (bool,):
            flags = f"{k.flag}/--no-{k.flag[2:]}"
            return click.option(flags, k.name, default=k.default, help=k.help, show_default=True)
        return click.option(k.flag, k.name, type=KnobType(k), default=k.default, help=_help(k))

    def decorate(function: F) -> F:
        for k in reversed(_named(cls, names)):
            function = one(k)(function)
        return function

    return decorate


def _help(k: Knob) -> str:
    """What a knob means, what it accepts unless the choices before it say that already, and its default."""
    accepts = f"; {k.domain}" if set(k.kinds) - {str} else ""
    return f"{k.help}{accepts}" + (f"  [default: {k.default}]" if k.default is not None else "")


def _metavar(k: Knob) -> str:
    words = [{int: "INT", float: "NUMBER", str: "TEXT"}.get(kind, "") for kind in k.kinds]
    words = [w for w in words if w and not (w == "TEXT" and k.choices)] + [str(c) for c in k.choices or ()]
    return "|".join(words) or "VALUE"


def _named(cls: type, names: tuple[str, ...]) -> list[Knob]:
    every = {k.name: k for k in knobs(cls)}
    for name in names:
        if name not in every:
            raise ConfigError(f"{name}: {cls.__name__} has no such knob; known: {', '.join(every)}")
    return [every[name] for name in names or every]


def table(cls: type, *names: str) -> str:
    """The knobs as a Markdown table: name, default, what it accepts, meaning."""
    rows = ["| knob | default | accepts | meaning |", "|---|---|---|---|"]
    for k in _named(cls, names):
        cells = (f"`{k.name}`", f"`{k.default!r}`", k.domain, k.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
