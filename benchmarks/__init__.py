"""Speed and memory, measured: ratios to peers in one run, and to the machine's own peak."""
