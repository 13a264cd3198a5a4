"""Dictionary learning: features (transformer factors) whose sparse sums approximate the hidden
states."""
