"""Pages: what a run has to show, in a browser. Imports no jax."""
