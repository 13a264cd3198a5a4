"""Preprocessing of text, images and audio to inputs of a model."""
