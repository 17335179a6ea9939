"""Places: what search says of real photos of places, beside known answers and classical rivals. No paper's tables."""

from __future__ import annotations

from likewise.papers import Table
from likewise.papers.places import ranking
from likewise.papers.places.copies import Options, growth, planted_copies

TABLES = (
    Table(
        "shortlist", "Places found again, by what finds them; each left out in turn", ranking.Options, ranking.shortlist
    ),
    Table("verdict", "What verdicts are worth on a collection left out in turn", ranking.Options, ranking.verdict),
    Table("copies", "Copies planted among real photos: found, and joined wrongly", Options, planted_copies),
    Table("growth", "Duplicates of ever more photos: CPU-seconds and memory", Options, growth),
)
