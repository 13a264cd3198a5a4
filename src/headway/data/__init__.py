"""Read data files, check them, convert them to token arrays, and form batches."""
