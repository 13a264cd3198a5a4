"""Read images, videos and audio files into stores of pixels and samples."""
