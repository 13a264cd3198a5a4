"""From scores to text: greedy, sampling, beam search, rules, alignments, and the translator."""
