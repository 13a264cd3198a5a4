"""Measurements on recorded forward passes: attribution maps and their accuracy, attention heads,
logit lens, positional encodings, and dictionary learning."""
