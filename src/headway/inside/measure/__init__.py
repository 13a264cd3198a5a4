"""Numbers about what was captured: maps, heads, lenses, positions, factors, truth."""
