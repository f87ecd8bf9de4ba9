"""Tokens of services: whether they are present, and texts without their values."""

from __future__ import annotations

import os

VARIABLES = ("WANDB_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN")
"""Environment variables that hold tokens."""


def redact(text: str) -> str:
    """The text with every known token replaced by the name of its variable."""
    for name in VARIABLES:
        value = os.environ.get(name, "")
        if value:
            text = text.replace(value, f"<{name}>")
    return text
