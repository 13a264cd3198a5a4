"""Searches, each under its own name: greedy, sample, beam, constrained, speculative, recorded."""
