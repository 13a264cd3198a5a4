"""Scores of outputs: a function each, under its usual name; BLEU and chrF are sacreBLEU's.

A new metric is a function here, its row in `METRICS` of `tasks/specs.py` (name, unit, which way is
better; reports, evaluations and checks read that), and its name in the rows of tasks that have it.
"""
