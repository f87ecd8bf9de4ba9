"""Models that Stable-Baselines3 saved, read by SB3 in a confined process and rebuilt here."""
