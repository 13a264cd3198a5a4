"""Pages that are single files: their sources (see `README.md`), and the code that adds the data."""
