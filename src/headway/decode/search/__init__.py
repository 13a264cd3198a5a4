"""Search algorithms: greedy, sampling, beam, constrained, speculative, and with CUDA graphs."""
