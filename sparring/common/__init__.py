"""Stable-Baselines3's module names: thin layers over sparring's own parts, so that its scripts run here."""
