"""LIFE: Lighting Invariant Flow Estimation."""
