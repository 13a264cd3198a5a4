"""Building blocks of models. They are built from numbers and other blocks, not from settings."""
