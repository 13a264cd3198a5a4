"""Attention: the module `Attention`, the function `attend`, and the back ends of `attend`."""
