"""Where did this point go? Lighting-invariant flow between two images, and matches guided by it."""
