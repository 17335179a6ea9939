"""DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning (Milbich et al., ECCV 2020).

`layouts` reads CUB200, CARS196 and SOP as they are published, `rivals` has the tasks that the paper compares
with and its own settings, `tables` makes its tables anew.
"""

from __future__ import annotations

from likewise.papers.diva.tables import TABLES as TABLES
