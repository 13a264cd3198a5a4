"""Training: the loop and its parts. For now the graphed step that the benchmarks measure."""
