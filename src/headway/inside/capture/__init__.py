"""What a model reads and does, written down: readings, traces, interventions, studies' corpora."""
