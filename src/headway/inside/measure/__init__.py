"""Measurements of recorded passes: maps, heads, lenses, positional encodings, factors and
accuracy."""
