"""MLML: Multi-Level Metric Learning via Smoothed Wasserstein Distance."""
