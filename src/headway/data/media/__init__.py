"""Decode image, video and audio files into stores of pixels and samples."""
