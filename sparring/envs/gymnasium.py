"""Gymnasium environments in this process: our own loop over rows, resumable by replay.

Imports no jax: environment workers run this loop too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparring.envs.api import episode_seed
from sparring.envs.atari import quicken
from sparring.envs.gym_spaces import action_space, action_splitter, by_hand, observation_space, stacker
from sparring.envs.journal import Journal
from sparring.envs.masks import fault, mask_method
from sparring.envs.references import REFER, RESOLVE, methods
from sparring.envs.source import GymId, explain, refuse_legacy
from sparring.errors import ConfigError, EnvironmentFailure, SpaceMismatch, SparringError
from sparring.spaces import Box, Dict, EnvSpec, legal_size, zeros
from sparring.types import TimeStep

# Environments whose state survives `reset`: an episode depends on the ones before, unless rebuilt.
KEEPS_STATE = ("BipedalWalker",)


class GymRows:
    """B Gymnasium environments stepped one after the other, as one host environment."""

    backend_reason = "asked for"
    may_lose = False

    def __init__(
        self,
        sources: Sequence[Callable[[], Any]],
        *,
        label: str | None = None,
        time_limit: int | None = None,
        first_row: int = 0,
        fresh_every_episode: bool | None = None,
    ) -> None:
        if not sources:
            raise ConfigError("An environment needs at least one row; set n_envs >= 1.")
        if time_limit is not None and time_limit < 1:
            raise ConfigError(f"time_limit must be at least 1, not {time_limit}.")
        self.sources = list(sources)
        self._label = label or str(getattr(sources[0], "label", "environment"))
        self._first_row = first_row
        self._used = [False] * len(sources)
        self.envs = [self._build(row) for row in range(len(sources))]
        self._check_alike()
        self._bind()
        first = self.envs[0]
        if label is None:
            self._label = str(getattr(getattr(first, "spec", None), "id", None) or self._label)
        self.fresh_every_episode = (
            self._label.rpartition("/")[2].startswith(KEEPS_STATE)
            if fresh_every_episode is None
            else fresh_every_episode
        )
        limit, threshold, counted = self._registered(time_limit)
        self._limit = counted
        self._split = action_splitter(first.action_space)
        self._stack = stacker(first.observation_space)
        self._spec = EnvSpec(
            id=self._label,
            observation=observation_space(first.observation_space),
            action=action_space(first.action_space),
            rows=len(self.envs),
            time_limit=limit,
            reward_threshold=threshold,
            masks_actions=callable(mask_method(first)),
            refers=methods(first) is not None,
        )
        self.by_hand = by_hand(first.observation_space, first.action_space)
        self._float_parts = _float_parts(self._spec)
        self._none = np.zeros(len(self.envs), bool)
        self._none.setflags(write=False)  # handed out again and again
        self._journal = Journal(zeros(self._spec.action, (len(self.envs),)))
        self._episodes = [0] * len(self.envs)
        self._next_cut: float = math.inf
        self._seed: int | None = None
        self._obs: Any = None
        self._events: list[str] = []
        self.last_infos: Sequence[dict[str, Any]] = ()

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def episodes(self) -> list[int]:
        """The number of each row's current episode."""
        return list(self._episodes)

    def reset(self, seed: int) -> TimeStep:
        return self.start(seed, [0] * len(self.envs))

    def start(self, seed: int, episodes: Sequence[int]) -> TimeStep:
        """Starts every row with the episode of the given number."""
        self._seed = seed
        self._journal = Journal(zeros(self._spec.action, (len(self.envs),)))
        self._episodes = list(episodes)
        self._obs = self._stacked([self._begin(row) for row in range(len(self.envs))])
        self._schedule_cut()
        return self._still()

    def step(self, action: np.ndarray) -> TimeStep:
        journal, results = self._journal, []
        try:
            journal.append(action)
            for step, choice in zip(self._steps, self._split(action), strict=True):
                results.append(step(choice))
        except Exception as error:
            raise self._step_failure(len(results), action, error) from error
        try:
            obs, rewards, terminated, truncated, infos = zip(*results, strict=True)
            batch = self._stack(obs)
            reward = np.array(rewards, np.float32)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise self._contract_failure(results, error) from error
        self.last_infos = infos
        if not self._finite(batch, reward):
            raise self._not_finite(batch, reward, action)
        if True in terminated or True in truncated or journal.now >= self._next_cut:
            return self._ended_step(batch, reward, terminated, truncated)
        self._obs, named = batch, self._references()
        legal = self._legal()
        none = self._none
        return TimeStep(batch, reward, none, none, batch, None, legal, None, None, named, named, legal)

    def _ended_step(self, batch: Any, reward: np.ndarray, terminated: Any, truncated: Any) -> TimeStep:
        term = np.array(terminated, bool)
        cut = np.array(truncated, bool)
        if self._limit is not None:
            cut |= np.array([self._journal.length(row) >= self._limit for row in range(len(self.envs))])
        cut &= ~term
        ended = np.flatnonzero(term | cut)
        obs, named, follows = _copied(batch), self._references(), self._legal(~term)
        for row in ended.tolist():
            self._episodes[row] += 1
            _write_row(obs, row, self._stacked([self._begin(row)]))
        self._schedule_cut()
        self._obs, legal = obs, self._legal()
        shown = self._references()
        return TimeStep(obs, reward, term, cut, batch, None, legal, None, None, shown, named, follows)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Episode numbers, actions since each reset, and the observations they led to."""
        self._started()
        example = zeros(self._spec.action)
        actions = [self._journal.actions(row) for row in range(len(self.envs))]
        known = [a for a in actions if a is not None and len(a)]
        return {
            "episode": np.array(self._episodes, np.int64),
            "length": np.array([-1 if a is None else len(a) for a in actions], np.int64),
            "actions": np.concatenate(known) if known else np.zeros((0, *example.shape), example.dtype),
            **{f"obs.{name}": part.copy() for name, part in _named(self._obs)},
        }

    def restore(self, snapshot: dict[str, np.ndarray], seed: int) -> TimeStep:
        """Replays every row's episode; a row that does not meet its last observation starts a new one.

        Such a row is marked `lost` and named in `events`.
        """
        rows = len(self.envs)
        lengths = self._check_snapshot(snapshot)
        ends = np.cumsum(np.maximum(lengths, 0))
        self._seed = seed
        self._episodes = snapshot["episode"].tolist()
        lost, observations, replayed = np.zeros(rows, bool), [], []
        for row in range(rows):
            actions = snapshot["actions"][ends[row] - max(lengths[row], 0) : ends[row]]
            wanted = [
                (name, snapshot[f"obs.{name}"][row]) for name, _ in _named(zeros(self._spec.observation))
            ]
            reason = "its episode was too long to keep" if lengths[row] < 0 else None
            obs = None if reason else self._replay(row, actions, wanted)
            if obs is None:
                lost[row], actions = True, actions[:0]
                self._episodes[row] += 1
                obs = self._begin(row)
                why = (
                    reason
                    or "its replay met another observation, so its state survives reset or is not seeded"
                )
                self._events.append(
                    f"row {self._first_row + row} of {self._label} could not be restored exactly: {why}. "
                    "It starts a new episode."
                )
            observations.append(obs)
            replayed.append(actions)
        self._journal.load(replayed)
        self._schedule_cut()
        self._obs = self._stacked(observations)
        still = self._still()
        return still._replace(lost=lost) if lost.any() else still

    def render(self) -> np.ndarray | None:
        env = self.envs[0]
        if getattr(env, "render_mode", None) is None:
            return None
        frame = env.render()
        frame = frame[-1] if isinstance(frame, list) and frame else frame
        return frame if isinstance(frame, np.ndarray) else None

    def events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        envs, self.envs = self.envs, []
        for env in envs:
            env.close()

    # -- building ------------------------------------------------------------------------------------------

    def _build(self, row: int) -> Any:
        source = self.sources[row]
        try:
            env = source()
        except SparringError:
            raise
        except Exception as error:
            raise explain(self._label, getattr(source, "kwargs", {}), error) from error
        refuse_legacy(env)
        for name in ("reset", "step", "observation_space", "action_space"):
            if not hasattr(env, name):
                raise EnvironmentFailure(
                    f"{self._label!r} built a {type(env).__name__}, which has no {name!r} and is no "
                    "Gymnasium environment; return a gymnasium.Env."
                )
        quicken(env)
        return env

    def _check_alike(self) -> None:
        first = self.envs[0]
        for row, env in enumerate(self.envs[1:], 1):
            for kind in ("observation_space", "action_space"):
                if getattr(env, kind) != getattr(first, kind):
                    raise SpaceMismatch(
                        f"Row {row} of {self._label!r} has the {kind} {getattr(env, kind)}, row 0 has "
                        f"{getattr(first, kind)}; all rows must have the same spaces."
                    )

    def _bind(self) -> None:
        self._steps = [env.step for env in self.envs]
        self._masks = [mask_method(env) for env in self.envs]
        found = [methods(env) for env in self.envs]
        self._refers = [each[0] for each in found if each is not None]

    def _registered(self, override: int | None) -> tuple[int | None, float | None, int | None]:
        """Time limit for the specification, reward threshold, and the limit this loop keeps itself."""
        source = self.sources[0]
        if isinstance(source, GymId):
            registered = source.registered()
            limit = override or registered.max_episode_steps
            return limit, _number(registered.reward_threshold), limit
        registered = getattr(self.envs[0], "spec", None)
        own = getattr(registered, "max_episode_steps", None)
        limits = [limit for limit in (override, own) if limit is not None]
        return min(limits, default=None), _number(getattr(registered, "reward_threshold", None)), override

    # -- episodes ------------------------------------------------------------------------------------------

    def _begin(self, row: int) -> Any:
        """Resets one row into its current episode and returns the raw observation."""
        if self.fresh_every_episode and self._used[row]:
            self.envs[row].close()
            self.envs[row] = self._build(row)
            self._bind()
        self._used[row] = True
        self._journal.begin(row)
        seed = episode_seed(self._started(), self._first_row + row, self._episodes[row])
        try:
            result = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise self._reset_failure(row, error) from error
        if not isinstance(result, tuple) or len(result) != 2:
            raise self._not_gymnasium(f"it returned a {type(result).__name__}")
        return result[0]

    def _replay(self, row: int, actions: np.ndarray, wanted: list[tuple[str, np.ndarray]]) -> Any:
        """The observation after the actions, or None when it is not the wanted one bit for bit."""
        obs, ended = self._begin(row), False
        for choice in self._split(actions):
            if ended:
                return None
            obs, _, terminated, truncated, _ = self._steps[row](choice)
            ended = terminated or truncated
        found = dict(_named(self._stacked([obs])))
        same = all(found[name].tobytes() == part.tobytes() for name, part in wanted)
        return obs if same and not ended else None

    def _schedule_cut(self) -> None:
        if self._limit is not None:
            self._next_cut = min(self._journal.start) + self._limit

    def _still(self) -> TimeStep:
        reward = np.zeros(len(self.envs), np.float32)
        obs, none, named = self._obs, self._none, self._references()
        legal = self._legal()
        return TimeStep(obs, reward, none, none, obs, None, legal, None, None, named, named, legal)

    def resolve(self, references: np.ndarray) -> Any:
        """The observations that these numbers stand for, [N, …] for [N]."""
        found = methods(self.envs[0])
        if found is None:
            raise EnvironmentFailure(f"{self._label!r} has no {REFER} and {RESOLVE}.")
        return found[1](references)

    def _references(self) -> np.ndarray | None:
        if not self._spec.refers:
            return None
        return np.array([refer() for refer in self._refers], np.int64)

    def _legal(self, asked: np.ndarray | None = None) -> np.ndarray | None:
        """What rows may do now; a row that is not asked, because its episode is over, everything."""
        if not self._spec.masks_actions:
            return None
        everything = np.ones(legal_size(self._spec.action), bool)
        masks = [
            mask() if asked is None or asked[row] else everything for row, mask in enumerate(self._masks)
        ]
        try:
            return np.array(masks, bool).reshape(len(self.envs), legal_size(self._spec.action))
        except (TypeError, ValueError) as error:
            raise self._no_mask(masks, error) from error

    def _started(self) -> int:
        if self._seed is None:
            raise EnvironmentFailure(f"{self._label!r} was used before it was reset; call `reset` first.")
        return self._seed

    # -- trouble -------------------------------------------------------------------------------------------

    def _stacked(self, observations: Sequence[Any]) -> Any:
        """Observations after a reset as one batch, checked."""
        try:
            batch = self._stack(observations)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise EnvironmentFailure(
                f"{self._label!r} returned a first observation that does not belong to its observation space "
                f"{self.envs[0].observation_space}: {error}. Run `sparring check-env` on it."
            ) from error
        if not self._finite(batch, None):
            raise EnvironmentFailure(
                f"{self._label!r} returned a first observation that is not finite. Mend its reset."
            )
        return batch

    def _finite(self, batch: Any, reward: np.ndarray | None) -> bool:
        # Looking for a zero byte is quicker than a reduction for the few numbers a step has.
        if reward is not None and b"\0" in np.isfinite(reward).tobytes():
            return False
        if self._float_parts is None:
            return True
        if not self._float_parts:
            return b"\0" not in np.isfinite(batch).tobytes()
        return all(b"\0" not in np.isfinite(batch[name]).tobytes() for name in self._float_parts)

    def _not_finite(self, batch: Any, reward: np.ndarray, action: np.ndarray) -> EnvironmentFailure:
        parts = [("a reward", reward)]
        parts += [(f"an observation {name}".strip(), part) for name, part in _named(batch)]
        for what, part in parts:
            bad = np.argwhere(~np.isfinite(part))
            if len(bad):
                row, where = int(bad[0][0]), bad[0][1:].tolist()
                place = f" at index {where}" if where else ""
                return EnvironmentFailure(
                    f"{self._where(row)} returned {what} that is not finite ({part[tuple(bad[0])]}{place}) "
                    f"for the action {_short(action[row])}. Mend the environment, or clip what it returns in "
                    "a gymnasium wrapper."
                )
        raise AssertionError("no value is non-finite")

    def _no_mask(self, masks: list[Any], error: Exception) -> EnvironmentFailure:
        found = [(row, fault(self._spec.action, mask)) for row, mask in enumerate(masks)]
        row, why = next(((row, why) for row, why in found if why), (0, str(error)))
        return EnvironmentFailure(
            f"{self._where(row)} returned no mask from action_masks(): {why}. Return one bool per option; "
            "run `sparring check-env` on it."
        )

    def _step_failure(self, row: int, action: np.ndarray, error: Exception) -> SparringError:
        if isinstance(error, SparringError):
            return error
        if self._seed is None:
            return EnvironmentFailure(f"{self._label!r} was stepped before it was reset; call `reset` first.")
        if not self.envs or row >= len(self.envs) or len(action) != len(self.envs):
            return EnvironmentFailure(
                f"{self._label!r} has {len(self.envs)} rows and got actions of shape "
                f"{np.shape(action)}: {error}"
            )
        return EnvironmentFailure(
            f"{self._where(row)} raised {type(error).__name__}: {error} on the action {_short(action[row])}. "
            "The traceback above is the environment's own."
        )

    def _reset_failure(self, row: int, error: Exception) -> SparringError:
        if isinstance(error, TypeError) and "seed" in str(error):
            return self._not_gymnasium(str(error))
        return EnvironmentFailure(
            f"{self._label!r}, row {self._first_row + row}, raised {type(error).__name__}: {error} in reset "
            f"of episode {self._episodes[row]}."
        )

    def _not_gymnasium(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{self._label!r} does not follow Gymnasium's API: reset(seed=…) must return (observation, "
            f"info), but {what}. An environment written for the legacy gym needs shimmy or a small wrapper."
        )

    def _contract_failure(self, results: Sequence[Any], error: Exception) -> EnvironmentFailure:
        for row, result in enumerate(results):
            if not isinstance(result, tuple) or len(result) != 5:
                what = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
                return EnvironmentFailure(
                    f"{self._where(row)} returned {what} from step; Gymnasium's API is (observation, reward, "
                    "terminated, truncated, info). An environment written for the legacy gym returns four."
                )
        return EnvironmentFailure(
            f"{self._label!r} returned a step that does not fit its observation space "
            f"{self.envs[0].observation_space} or a scalar reward: {error}. Run `sparring check-env` on it."
        )

    def _where(self, row: int) -> str:
        step = self._journal.length(row)
        return f"{self._label!r}, row {self._first_row + row}, episode {self._episodes[row]}, step {step},"

    def _check_snapshot(self, snapshot: dict[str, np.ndarray]) -> np.ndarray:
        names = [f"obs.{name}" for name, _ in _named(zeros(self._spec.observation))]
        wanted = {"episode", "length", "actions", *names}
        rows = len(self.envs)
        if not wanted <= set(snapshot) or any(
            len(snapshot[name]) != rows for name in ("episode", "length", *names)
        ):
            raise EnvironmentFailure(
                f"The saved state does not belong to {self._label!r} with {rows} rows; resume with the "
                "environment and n_envs of the run."
            )
        return snapshot["length"]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _float_parts(spec: EnvSpec) -> list[str] | None:
    """Names of the observation's float parts; empty for a single float Box, None when there are none."""
    if isinstance(spec.observation, Dict):
        names = [
            name for name, part in spec.observation.parts if isinstance(part, Box) and part.dtype != "uint8"
        ]
        return names or None
    return [] if isinstance(spec.observation, Box) and spec.observation.dtype != "uint8" else None


def _named(obs: Any) -> list[tuple[str, np.ndarray]]:
    return list(obs.items()) if isinstance(obs, dict) else [("", obs)]


def _copied(obs: Any) -> Any:
    return {name: part.copy() for name, part in obs.items()} if isinstance(obs, dict) else obs.copy()


def _write_row(obs: Any, row: int, value: Any) -> None:
    """Writes a batch of one into a row of a batch."""
    if isinstance(obs, dict):
        for name, part in obs.items():
            part[row] = value[name][0]
    else:
        obs[row] = value[0]


def _short(action: Any) -> str:
    text = repr(action.tolist()) if isinstance(action, np.ndarray | np.generic) else repr(action)
    return text if len(text) < 80 else text[:77] + "..."
