"""Classic control as pure JAX functions: Gymnasium's dynamics, spaces, limits and thresholds."""
