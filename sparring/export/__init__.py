"""What leaves a run: its metrics as tables and for trackers, its agent for other programs."""
