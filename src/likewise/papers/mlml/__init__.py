"""MLML: Multi-Level Metric Learning via Smoothed Wasserstein Distance."""

from __future__ import annotations

from likewise.papers.mlml.tables import TABLES as TABLES
