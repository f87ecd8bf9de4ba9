"""Runs for a language model on the same desktop: the Model Context Protocol, read-only."""
