"""Readers of file formats. Each reader returns a table and does not depend on the task."""
