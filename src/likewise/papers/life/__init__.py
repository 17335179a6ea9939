"""LIFE: Lighting Invariant Flow Estimation."""

from __future__ import annotations

from likewise.papers.life.tables import TABLES as TABLES
