"""Transformer factors: dictionaries of directions that states are sums of."""
