"""Work inside a network, watched from outside: every pass asks first whether anybody still waits for its result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from likewise.studio.jobs import Work


@contextlib.contextmanager
def watched(parts: tuple[Any, ...], work: Work, passed: Callable[[int], None] | None = None) -> Iterator[None]:
    """While inside, a call of one of these modules checks the work first, and tells `passed` how many rows it takes."""
    lock = threading.Lock()

    def before(_: Any, inputs: tuple[Any, ...]) -> None:
        work.check()
        if passed is not None:
            with lock:
                passed(int(inputs[0].shape[0]))

    hooks = [part.register_forward_pre_hook(before) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def aligning(work: Work) -> Iterator[None]:
    """While inside, every pass of the network that aligns two pictures checks the work first."""
    from likewise.pixels import default

    network = default().network
    with watched((network, network.encoder), work):
        yield


@contextlib.contextmanager
def embedding(model: Any, work: Work, total: int, words: str) -> Iterator[None]:
    """While inside, every picture that an embedder sees is counted, and said to be one of `total`."""
    first = _entrance(model)
    seen = 0

    def passed(count: int) -> None:
        nonlocal seen
        seen += count
        work.say(f"{words}, {min(seen, total)} of {total}", min(1.0, seen / max(total, 1)))

    with watched(() if first is None else (first,), work, passed):
        yield


def _entrance(model: Any) -> Any | None:
    """The first convolution of an embedder's network, which sees every picture; None for one that has none."""
    from torch import nn

    network = getattr(model, "network", None)
    modules = network.modules() if isinstance(network, nn.Module) else ()
    return next((m for m in modules if isinstance(m, nn.Conv2d)), None)
