"""Frames of several rows as one picture, and a window to show it in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

_said: set[str] = set()
"""What the user has been told already."""


def tiled(frames: Sequence[np.ndarray]) -> np.ndarray:
    """Frames of one size in a grid that is as square as it can be; empty places are black."""
    high = math.ceil(math.sqrt(len(frames)))
    wide = math.ceil(len(frames) / high)
    height, width, channels = frames[0].shape
    grid = np.zeros((high, wide, height, width, channels), frames[0].dtype)
    for place, frame in enumerate(frames):
        grid[place // wide, place % wide] = frame
    return grid.transpose(0, 2, 1, 3, 4).reshape(high * height, wide * width, channels)


def show(picture: np.ndarray | None) -> None:
    """Draws a picture in a window; says once when there is nothing to draw or nowhere to draw it."""
    if picture is None:
        _warn_once("This environment draws nothing; make it with render_mode='rgb_array'.")
        return
    try:
        import pygame

        size = (picture.shape[1], picture.shape[0])
        if not pygame.display.get_init():
            pygame.display.init()
        window = pygame.display.get_surface()
        if window is None or window.get_size() != size:
            window = pygame.display.set_mode(size)
        pygame.event.pump()
        window.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
    except ImportError:
        _warn_once("No window without pygame. Install it with: pip install 'sparring[classic]'")
    except RuntimeError as error:  # pygame.error, where there is no display
        _warn_once(f"No window can be opened ({error}); film the agent with VecVideoRecorder instead.")


def _warn_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=3)
