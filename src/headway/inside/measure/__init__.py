"""Measurements on recorded forward passes: attribution maps, attention heads, logit lens,
positional encodings, dictionary learning and map accuracy."""
