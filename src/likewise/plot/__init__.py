"""One figure per correspondence, drawn from the plain types. Every function returns a matplotlib Figure.

No global state is touched: figures are made without pyplot, so that drawing is safe in threads and servers.
The palette is Okabe and Ito's (told apart by colour-blind readers), the sequential map is cividis.
"""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
