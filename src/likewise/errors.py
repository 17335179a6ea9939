"""Everything likewise raises on purpose.

LikewiseError
├── InputError (also a ValueError)      an argument is wrong: which, what was expected, what came
│   ├── ShapeError                      an array has the wrong shape
│   └── ConfigError                     an option is unknown or out of its bounds
├── FileError (also an OSError)         a file is missing, damaged, hostile or of another kind
├── ShardError                          some shards of a job failed: which, why; the finished ones are kept
├── BudgetError                         a sampler would need more Jacobians than it was allowed
├── RequestError                        the studio refuses a request: an HTTP status and a sentence
├── NotFittedError                      an estimator was asked before it was fitted (scikit-learn's, too)
└── MissingExtra (also an ImportError)  an optional dependency is not installed: the message has the pip line

UserWarning
├── ConvergenceWarning                  a solver stopped at its iteration limit
├── DegeneracyWarning                   a few latents own nearly all the weight of a sample
└── SmallSampleWarning                  a figure was measured on fewer samples than it needs
"""

from __future__ import annotations

from collections.abc import Mapping


class LikewiseError(Exception):
    """The root: catch this to catch everything that likewise raises on purpose."""


class InputError(LikewiseError, ValueError):
    """An argument is wrong. The message names it, what was expected, and what came."""


class ShapeError(InputError):
    """An array has the wrong shape."""


class ConfigError(InputError):
    """An option is unknown, of the wrong type, or out of its bounds."""


class FileError(LikewiseError, OSError):
    """A file is missing, damaged, hostile or of another kind than it says."""


class ShardError(LikewiseError):
    """Some shards of a job failed. `failures` says why, by shard number; what is finished stays finished."""

    def __init__(self, message: str, failures: Mapping[int, str]) -> None:
        super().__init__(message)
        self.failures = dict(failures)


class RequestError(LikewiseError):
    """A request that the studio answers by an HTTP status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BudgetError(LikewiseError):
    """A sampler used up its spectra before it had drawn what was asked."""


class NotFittedError(LikewiseError, ValueError, AttributeError):
    """An estimator was asked for a result before `fit`."""


class MissingExtra(LikewiseError, ImportError):
    """An optional dependency is missing; the message has the line that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; pip install 'likewise[{extra}]'")
        self.package, self.extra = package, extra


class ConvergenceWarning(UserWarning):
    """A solver stopped at its iteration limit; the result carries its residual."""


class DegeneracyWarning(UserWarning):
    """A few latents own nearly all the weight: the sample repeats them."""


class SmallSampleWarning(UserWarning):
    """A figure was measured on fewer samples than it needs: it is biased, and comparable only at the same size."""
