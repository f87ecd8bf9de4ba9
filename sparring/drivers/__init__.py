"""Drivers own time: they step environments, hand rollouts to the algorithm, and give the host control."""
