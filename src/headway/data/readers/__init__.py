"""Readers of file formats. Each returns a table and is independent of the task."""
