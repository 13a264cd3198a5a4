"""Record what a model reads and computes: readings, traces, interventions and corpora for
studies."""
