"""Self-contained HTML pages: the sources of their scripts and styles (see `README.md`), and the
code that adds the data."""
