"""One picture per correspondence, drawn from the plain types. Every function returns a matplotlib Figure.

No global state is touched: figures are made without pyplot, so that drawing is safe in threads and servers.
The palette is Okabe and Ito's (told apart by colour-blind readers), the sequential map is cividis.
"""

from __future__ import annotations

from likewise.plot.charts import bars, curves, heatmap
from likewise.plot.covers import Pair, cover_map, coverage
from likewise.plot.flows import alignment, checkerboard, disc, matches, wheel
from likewise.plot.frontiers import frontier
from likewise.plot.orders import crossings, untangle
from likewise.plot.parts import parts
from likewise.plot.pictures import THUMBNAIL_PIXELS, Picture, grid
from likewise.plot.plans import Thumbnails, plan
from likewise.plot.rankings import ranking
from likewise.plot.spectra import histogram, spectrum
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, save

__all__ = [
    "FAINT",
    "INK",
    "PALETTE",
    "QUIET",
    "THUMBNAIL_PIXELS",
    "Pair",
    "Picture",
    "Thumbnails",
    "alignment",
    "bars",
    "checkerboard",
    "cover_map",
    "coverage",
    "crossings",
    "curves",
    "disc",
    "frontier",
    "grid",
    "heatmap",
    "histogram",
    "matches",
    "parts",
    "plan",
    "ranking",
    "save",
    "spectrum",
    "untangle",
    "wheel",
]
