"""Files to pairs to token arrays to batches, and the check of what they hold."""
