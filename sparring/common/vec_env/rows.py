"""A vector environment with wrappers around it, as the host environment that a driver steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparring.common.vec_env.base import VecEnv, layers
from sparring.envs.gym_spaces import action_batcher, action_space, converter, observation_space
from sparring.errors import EnvironmentFailure
from sparring.spaces import EnvSpec
from sparring.types import TimeStep


def clock(venv: VecEnv) -> int:
    """Steps and resets that the innermost environment has been asked for."""
    return int(getattr(layers(venv)[-1], "clock", 0))


class VecRows:
    """SB3's step made ours: the last observation and the kind of ending come from the infos.

    Its state cannot be restored: wrappers keep what only they know.
    """

    backend_reason = "a vector environment was given"
    may_lose = True

    def __init__(self, venv: VecEnv) -> None:
        self.venv = venv
        inner = getattr(getattr(layers(venv)[-1], "rows", None), "spec", None)
        self._spec = EnvSpec(
            id=getattr(inner, "id", type(layers(venv)[-1]).__name__),
            observation=observation_space(venv.observation_space),
            action=action_space(venv.action_space),
            rows=venv.num_envs,
            time_limit=getattr(inner, "time_limit", None),
            reward_threshold=getattr(inner, "reward_threshold", None),
        )
        self._convert = converter(venv.observation_space)
        self._batch_action = action_batcher(venv.action_space)
        self.last_infos: list[dict[str, Any]] = [{} for _ in range(venv.num_envs)]
        self._clock = self._foreign = 0

    @property
    def foreign(self) -> int:
        """Steps and resets that someone else made."""
        return self._foreign + clock(self.venv) - self._clock

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(self, seed: int) -> TimeStep:
        self._foreign = self.foreign
        self.venv.seed(seed)
        obs = self._convert(self.venv.reset())
        self._clock = clock(self.venv)
        none = np.zeros(self._spec.rows, bool)
        return TimeStep(obs, np.zeros(self._spec.rows, np.float32), none, none, obs)

    def step(self, action: np.ndarray) -> TimeStep:
        self._foreign = self.foreign
        raw, reward, dones, self.last_infos = self.venv.step(self._batch_action(action))
        self._clock = clock(self.venv)
        obs = self._convert(raw)
        over = np.array(dones, bool).reshape(-1)
        cut, lost = (self._flagged(name) & over for name in ("TimeLimit.truncated", "lost"))
        reward = np.array(reward, np.float32).reshape(-1)
        if not over.any():
            return TimeStep(obs, reward, over, cut, obs)
        truncated = cut & ~lost
        return TimeStep(
            obs,
            np.where(lost, 0, reward).astype(np.float32),
            over & ~cut & ~lost,
            truncated,
            self._last(obs, over & ~lost),
            lost=lost if lost.any() else None,
        )

    def _flagged(self, name: str) -> np.ndarray:
        return np.array([bool(info.get(name, False)) for info in self.last_infos], bool)

    def _last(self, obs: Any, over: np.ndarray) -> Any:
        """The observations before the reset, where there was one."""
        last = {name: part.copy() for name, part in obs.items()} if isinstance(obs, dict) else obs.copy()
        for row in np.flatnonzero(over).tolist():
            final = self.last_infos[row].get("terminal_observation")
            if final is None:
                raise EnvironmentFailure(
                    f"{type(self.venv).__name__} ended row {row} without infos[{row}]['terminal_observation']"
                    "; without it truncation cannot bootstrap. Add it in step_wait."
                )
            if isinstance(last, dict):
                one = self._convert({name: np.asarray(part)[None] for name, part in final.items()})
                for name, part in last.items():
                    part[row] = one[name][0]
            else:
                last[row] = self._convert(np.asarray(final)[None])[0]
        return last

    def snapshot(self) -> None:
        return None

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        raise EnvironmentFailure(
            "A vector environment with wrappers cannot be restored; call `reset` to start new episodes."
        )

    def render(self) -> np.ndarray | None:
        return self.venv.render("rgb_array")

    def events(self) -> list[str]:
        return []

    def close(self) -> None:
        self.venv.close()
