"""Runs on disk: checkpoints, artefacts and the folder that holds them."""
