"""Metrics of model outputs, one function each, under their usual names.

BLEU and chrF use sacreBLEU. A new metric needs a function here, an entry in `METRICS` of
`specs/metrics.py` (name, unit, whether higher is better), and its name in the specs of the tasks
that use it.
"""
