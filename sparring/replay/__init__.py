"""Replay: what lies between collecting and learning, as pure functions over an explicit state."""
