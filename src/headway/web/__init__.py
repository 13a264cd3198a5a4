"""Self-contained HTML pages: their scripts and styles (see `README.md`), and the code that embeds
the data."""
