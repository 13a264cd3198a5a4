"""Decoding: search algorithms, logits processors, writers, completers and transcribers."""
