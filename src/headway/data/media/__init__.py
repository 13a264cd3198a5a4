"""Pictures, videos and recordings: files to stores of pixels and samples."""
