"""Record what a model reads and computes: inputs and outputs, traces, interventions and corpora."""
