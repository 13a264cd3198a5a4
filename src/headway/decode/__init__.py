"""From scores to text: searches, what may come next, writers, completers and transcribers."""
