"""Pages that are one file: their source (see `README.md`) and what puts it together with data."""
