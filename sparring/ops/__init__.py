"""Pure functions: keys, seams, returns, distributions, optimisers, statistics."""
