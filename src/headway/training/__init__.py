"""Training of a run: settings, training loop, optimizers, checkpoints and reports."""
