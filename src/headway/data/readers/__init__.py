"""Readers of files: one for each format. They give tables and know nothing of tasks."""
