"""Optimal transport between many small weighted point sets, and the kernels that solve it.

The torch road (`batched`) loads when it is first touched: who compares sets of numbers never pays for torch.
"""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
