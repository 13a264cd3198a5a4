"""Training of a run: settings, the loop, optimisers, checkpoints and reports."""
