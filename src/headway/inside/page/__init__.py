"""What was measured, shown: the page and its sections, the server, the terminal."""
