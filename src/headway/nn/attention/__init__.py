"""Attention: the module, the one seam `attend`, and the back ends behind it."""
