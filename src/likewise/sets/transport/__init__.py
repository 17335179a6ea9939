"""Optimal transport between many small weighted point sets, and the kernels that solve it."""
