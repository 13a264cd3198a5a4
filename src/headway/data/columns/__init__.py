"""Kinds of columns. Each kind has a class that matches, parses, checks, stores and displays
values."""
