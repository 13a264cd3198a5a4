"""Attention: the module, the function `attend`, and its back ends."""
