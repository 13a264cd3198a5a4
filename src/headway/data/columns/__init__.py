"""The kinds of columns: one class per kind, which matches, parses, checks, stores and shows."""
