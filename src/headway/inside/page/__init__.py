"""Show measurements: the page and its sections, the server and the terminal."""
