"""Environments: JAX-native ones, adapters for Gymnasium and EnvPool, and the probes.

Importing this package imports neither jax nor gymnasium; `registry.make` loads what an id needs.
"""
