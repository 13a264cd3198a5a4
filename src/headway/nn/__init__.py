"""Building blocks of models. Their arguments are numbers and other blocks, not settings objects."""
