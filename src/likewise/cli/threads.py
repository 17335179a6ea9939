"""One thread for linear algebra while a metric is learned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold every BLAS to one thread: the matrices of learning are small, and threads would only wait for each other.

    On two busy cores the fits of `likewise demo` took 147 s without this and 9 s with it. The libraries are loaded
    first, since only what is loaded can be held.
    """
    import scipy.linalg  # noqa: F401 - has a BLAS of its own
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):
        yield
