"""Parts of a Transformer. They are built from numbers and other parts, not from settings."""
