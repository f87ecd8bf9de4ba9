"""Atari preprocessing with SB3's names: no-ops, frame skip, grey 84 × 84, lives, FIRE, clipped rewards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class EpisodicLifeEnv(gymnasium.Wrapper):
    """A lost life ends the episode for the agent; the game goes on until it is really over."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.lives = 0
        self.was_real_done = True

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.was_real_done = terminated or truncated
        lives = self.env.unwrapped.ale.lives()
        lost = 0 < lives < self.lives
        self.lives = lives
        return obs, reward, terminated or lost, truncated, info

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        if self.was_real_done:
            obs, info = self.env.reset(**kwargs)
        else:
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        self.lives = self.env.unwrapped.ale.lives()
        self.was_real_done = False
        return obs, info


class FireResetEnv(gymnasium.Wrapper):
    """Presses FIRE at the start of games that wait for it."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        for action in (1, 2):
            obs, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                obs, info = self.env.reset(**kwargs)
        return obs, info


class ClipRewardEnv(gymnasium.RewardWrapper):
    """The sign of the reward."""

    def reward(self, reward: Any) -> float:
        return float(np.sign(reward))


class AtariWrapper(gymnasium.Wrapper):
    """All of it; the environment must be made with frameskip=1."""

    def __init__(
        self,
        env: Any,
        noop_max: int = 30,
        frame_skip: int = 4,
        screen_size: int = 84,
        terminal_on_life_loss: bool = True,
        clip_reward: bool = True,
    ) -> None:
        env = gymnasium.wrappers.AtariPreprocessing(
            env,
            noop_max=noop_max,
            frame_skip=frame_skip,
            screen_size=screen_size,
            grayscale_obs=True,
            grayscale_newaxis=True,
        )
        if terminal_on_life_loss:
            env = EpisodicLifeEnv(env)
        if "FIRE" in env.unwrapped.get_action_meanings():
            env = FireResetEnv(env)
        super().__init__(ClipRewardEnv(env) if clip_reward else env)
