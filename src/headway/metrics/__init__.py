"""Scores of outputs: thin layers over the packages that define them."""
