"""Preprocessing: how text, images and audio become the inputs of a model."""
