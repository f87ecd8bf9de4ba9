"""The command line: one module per verb; nothing here imports jax before a verb needs it."""
