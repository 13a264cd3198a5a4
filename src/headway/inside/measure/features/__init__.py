"""Transformer factors: dictionaries of directions whose sparse sums are the hidden states."""
