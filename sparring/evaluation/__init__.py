"""Evaluation: scores, confidence intervals, frames and videos of trained agents."""
