"""Training: options that are declared once, the loop, and several processes. Knows no level."""
