"""Options: one declaration is the Python default, the command-line flag, the row in the docs and the check.

>>> from dataclasses import dataclass
>>> from likewise.train.options import check, option
>>> @dataclass(frozen=True)
... class Settings:
...     gamma: float | str = option("auto", "smoothing of the plan", above=0, choices=("auto",))
...     tol: float = option(1e-6, "marginal error at which a solve stops", above=0, high=1)
...     def __post_init__(self) -> None:
...         check(self)
>>> Settings(tol=2)
Traceback (most recent call last):
    ...
likewise.errors.ConfigError: tol: expected number > 0 and ≤ 1, got 2

A scikit-learn estimator is the same: a dataclass (`eq=False, repr=False`, so that scikit-learn's own apply) whose
fields are options; the `__init__` that the dataclass makes has the explicit signature that `clone` and `get_params`
need, and `check(self)` is called in `fit`. Where the command line needs the options of an estimator, declare them in a
plain dataclass beside it and inherit: the flags then cost no import of scikit-learn.

No torch, NumPy or scikit-learn is imported here: `likewise --help` reads options without them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

from likewise.errors import ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """What is known of one option: `low ≤ x`, `above < x`, `x ≤ high` bind its numbers, `choices` its strings."""

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
        signs = ((">", self.above), ("≥", self.low), ("≤", self.high))
        bounds = " and ".join(f"{sign} {bound:g}" for sign, bound in signs if bound is not None)
        parts = [f"{_KIND_NAMES[k]} {bounds}".strip() for k in self.kinds if k in (int, float)]
        parts += [repr(c) for c in self.choices or ()]
        parts += [_KIND_NAMES[k] for k in self.kinds if k in (bool, type(None)) or (k is str and not self.choices)]
        return " or ".join(parts)

    def accepts(self, value: Any) -> bool:
        """Whether the value is of a right type, within the bounds or among the choices."""
        chosen = isinstance(value, str) and value in (self.choices or ())
        return chosen or any(self._fits(value, kind) for kind in self.kinds)

    def _fits(self, value: Any, kind: Any) -> bool:
        if type(value).__name__ in ("bool", "bool_"):  # Python's and NumPy's: True is no number
            return kind is bool
        if kind is int or kind is float:
            tower = numbers.Integral if kind is int else numbers.Real
            return isinstance(value, tower) and self._within(float(value))
        return isinstance(value, kind) and not (kind is str and self.choices)

    def _within(self, x: float) -> bool:
        above = (self.low is None or x >= self.low) and (self.above is None or x > self.above)
        return above and math.isfinite(x) and (self.high is None or x <= self.high)

    def check(self, value: Any) -> None:
        """Raise a ConfigError that names the option, what it accepts and what came."""
        if self.accepts(value):
            return
        hint = _guess(str(value), [str(c) for c in self.choices or ()])
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
        for kind in (k for k in (int, float) if k in self.kinds):
            with contextlib.suppress(ValueError):
                yield kind(text)


_KIND_NAMES: dict[Any, str] = {int: "integer", float: "number", str: "text", bool: "True or False", type(None): "None"}


def _guess(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """Declare an option as a field of a dataclass; the field's annotation gives its type.

    Parameters
    ----------
    default : object
        Its value in Python and on the command line.
    help : str
        What it means, in one line.
    low, above, high : float, optional
        A number must be ≥ low, > above, ≤ high.
    choices : tuple, optional
        A string must be one of these (a `float | str` option has bounds and choices). A `Literal` annotation gives
        the choices by itself.
    """
    said = {"help": help, "low": low, "above": above, "high": high, "choices": choices}
    return dataclasses.field(default=default, metadata={"option": said})


def list_options(cls: type) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of their declaration."""
    known: Any = cls  # mypy does not take a class for something that can be hashed
    return _list_options(known)


@functools.cache
def _list_options(cls: type) -> tuple[Option, ...]:
    """Annotations are read once a class: that takes as long as comparing two small sets."""
    hints = typing.get_type_hints(cls)
    return tuple(_read(field, hints[field.name]) for field in dataclasses.fields(cls) if "option" in field.metadata)


def _read(field: dataclasses.Field[Any], hint: Any) -> Option:
    """The option that a field declares; a default that breaks its own bounds is refused here."""
    (kinds, literals), said = _kinds(hint), field.metadata["option"]
    made = Option(field.name, field.default, kinds=kinds, **{**said, "choices": said["choices"] or literals or None})
    made.check(field.default)
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
    """Check every option of a dataclass instance; ConfigError names the option, what it accepts and the value."""
    for k in list_options(type(obj)):
        k.check(getattr(obj, k.name))


def build(cls: type[T], values: Mapping[str, Any]) -> T:
    """An instance from named values (a run directory's JSON, say), checked; an unknown name is a ConfigError."""
    known = [k.name for k in list_options(cls)]
    for name in values:
        if name not in known:
            hint = _guess(name, known) or f"; known: {', '.join(known)}"
            raise ConfigError(f"{name}: {cls.__name__} has no such option{hint}")
    made = cls(**values)
    check(made)
    return made


class GroupedOption(click.Option):
    """A click option that knows under which heading `--help` lists it."""

    def __init__(self, *args: Any, group: str | None = None, **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.group = group


class _OptionType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """Parses and checks a flag's text as the option it stands for."""

    def __init__(self, declared: Option) -> None:
        self.declared, self.name = declared, declared.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        kinds, choices = self.declared.kinds, self.declared.choices or ()
        words = [{int: "INT", float: "NUMBER", str: "TEXT"}.get(kind, "") for kind in kinds]
        words = [w for w in words if w and not (w == "TEXT" and choices)] + [str(c) for c in choices]
        return "|".join(words) or "VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.declared.parse(value) if isinstance(value, str) else value
        except (ConfigError, ValueError) as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(c) for c in map(str, self.declared.choices or ()) if c.startswith(incomplete)]


def add_options(cls: type, *names: str, group: str | None = None) -> Callable[[F], F]:
    """A click decorator: one --flag an option of cls (or of those named), with the same default, words and check.

    `group` is the heading under which `--help` lists them.
    """

    def decorate(function: F) -> F:
        every = {o.name: o for o in list_options(cls)}
        for o in reversed([every[name] for name in names or every]):
            said: dict[str, Any] = {"cls": GroupedOption, "group": group, "default": o.default}
            if o.kinds == (bool,):
                flags = click.option(f"{o.flag}/--no-{o.flag[2:]}", o.name, help=o.help, show_default=True, **said)
            else:
                flags = click.option(o.flag, o.name, type=_OptionType(o), help=_help(o), **said)
            function = flags(function)
        return function

    return decorate


def _help(k: Option) -> str:
    """What an option means, what it accepts unless the choices before it say that already, and its default."""
    accepts = f"; {k.domain}" if set(k.kinds) - {str} else ""
    return f"{k.help}{accepts}" + (f"  [default: {k.default}]" if k.default is not None else "")


def table(cls: type) -> str:
    """The options as a Markdown table: name, default, what it accepts, meaning."""
    rows = ["| option | default | accepts | meaning |", "|---|---|---|---|"]
    for k in list_options(cls):
        cells = (f"`{k.name}`", f"`{k.default!r}`", k.domain, k.help)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


@dataclass(frozen=True)
class LoopOptions:
    """The options of a training loop."""

    steps: int = option(0, "optimiser steps; 0: as many as the epochs make", low=0)
    schedule: Literal["cosine", "linear", "constant", "drop"] = option(
        "cosine", "how learning rates fall over the steps; drop: once, as drop_at and drop say"
    )
    drop_at: float = option(0.5, "share of the steps after which rates drop", low=0, high=1)
    drop: float = option(0.3, "what rates are multiplied by then", above=0, high=1)
    warmup: int = option(0, "steps over which rates rise from 0", low=0)
    weight_decay: float = option(1e-4, "AdamW's weight decay of the network", low=0)
    clip: float = option(0.0, "largest norm of the network's gradient; 0: no limit", low=0)
    ema: float = option(0.0, "decay of averaged weights to evaluate with; 0: none", low=0, high=0.99999)
    evaluate_every: int = option(0, "steps between two evaluations; 0: an epoch", low=0)
    save_every: float = option(60.0, "seconds between two saved states", low=0)
    patience: int = option(0, "evaluations without a better score before it stops; 0: never", low=0)

    def __post_init__(self) -> None:
        check(self)

    def rate(self, step: int) -> float:
        """The share of the full learning rates at a step."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = step / max(self.steps, 1)
        dropped = self.drop if done >= self.drop_at else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        falling = {"cosine": cosine, "linear": 1 - done, "constant": 1.0, "drop": dropped}
        return rising * falling[self.schedule]
