"""Polarity Sampling: quality and diversity control of pre-trained generators."""
