"""Polarity Sampling: quality and diversity control of pre-trained generators."""

from __future__ import annotations

from likewise.papers.polarity.tables import TABLES as TABLES
