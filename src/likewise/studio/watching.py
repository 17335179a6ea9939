"""Work inside a network, watched from outside: every pass asks first whether anybody still waits for its result."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from likewise.studio.jobs import Work


@contextlib.contextmanager
def watched(parts: tuple[Any, ...], work: Work, passed: Callable[[Any, int], None] | None = None) -> Iterator[None]:
    """While inside, a call of one of these modules checks the work first, and tells `passed` how many rows it takes."""
    lock = threading.Lock()

    def before(module: Any, inputs: tuple[Any, ...]) -> None:
        work.check()
        if passed is not None:
            with lock:
                passed(module, int(inputs[0].shape[0]))

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
    from torch import nn

    network, seen = getattr(model, "network", None), 0
    first: list[Any] = []

    def passed(module: Any, count: int) -> None:
        nonlocal seen
        if not first:
            first.append(module)  # that which is called first sees every picture
        if module is first[0]:
            seen += count
            work.say(f"{words}, {min(seen, total)} of {total}", min(1.0, seen / max(total, 1)))

    modules = tuple(network.modules())[1:] if isinstance(network, nn.Module) else ()
    with watched(modules, work, passed):
        yield
