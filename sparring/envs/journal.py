"""The actions of the episodes in progress: what is needed to bring an environment back to where it was."""

from __future__ import annotations

import numpy as np

MAX_BYTES = 256 * 2**20


class Journal:
    """Actions of all rows since each row's last reset, in one array that grows and drops what has ended.

    `now` counts steps of all rows together; row b's episode began at `start[b]`. When an episode outgrows
    the memory allowed, its beginning is forgotten and the row can no longer be replayed.
    """

    def __init__(self, example: np.ndarray, capacity: int = 256, max_bytes: int = MAX_BYTES) -> None:
        self.now = 0
        self.start = [0] * example.shape[0]
        self._base = 0
        self._actions = np.empty((capacity, *example.shape), example.dtype)
        self._limit = max(capacity, max_bytes // max(example.nbytes, 1))

    def append(self, action: np.ndarray) -> None:
        """Notes one step of all rows."""
        at = self.now - self._base
        if at == len(self._actions):
            self._make_room()
            at = self.now - self._base
        self._actions[at] = action
        self.now += 1

    def begin(self, row: int) -> None:
        """A new episode of the row starts here."""
        self.start[row] = self.now

    def length(self, row: int) -> int:
        """Steps since the row's reset."""
        return self.now - self.start[row]

    def actions(self, row: int) -> np.ndarray | None:
        """The row's actions since its reset, or None when their beginning is forgotten."""
        first = self.start[row] - self._base
        return None if first < 0 else self._actions[first : self.now - self._base, row].copy()

    def load(self, rows: list[np.ndarray]) -> None:
        """Continues with these actions per row, as if they had just been taken."""
        longest = max((len(actions) for actions in rows), default=0)
        capacity = max(len(self._actions), longest)
        self._actions = np.zeros((capacity, *self._actions.shape[1:]), self._actions.dtype)
        self._base, self.now = 0, longest
        for row, actions in enumerate(rows):
            self.start[row] = longest - len(actions)
            self._actions[self.start[row] : longest, row] = actions

    def _make_room(self) -> None:
        capacity = len(self._actions)
        drop = min(max(min(self.start) - self._base, 0), capacity)
        if drop < capacity // 2 and 2 * capacity <= self._limit:
            self._actions = np.concatenate([self._actions, np.empty_like(self._actions)])
            return
        drop = max(drop, capacity // 2)
        self._actions[: capacity - drop] = self._actions[drop:].copy()
        self._base += drop
