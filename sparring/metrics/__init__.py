"""Metrics: numbers by name and step, and the sinks that keep or show them. Imports no jax."""
