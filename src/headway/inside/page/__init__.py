"""Presentation of measurements: the HTML page and its sections, the live page, and text for the
terminal."""
