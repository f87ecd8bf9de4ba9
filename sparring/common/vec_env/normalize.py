"""VecNormalize: running normalisation, which here is a part of the agent."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparring.common.normalised import Normalised
from sparring.common.vec_env.base import Answer, VecEnv, VecEnvWrapper, unwrap_vec_wrapper
from sparring.errors import CheckpointError, ConfigError, StorageError

EPSILON = 1e-8
FLAGS = ("training", "norm_obs", "norm_reward", "clip_obs", "clip_reward", "gamma")


@dataclass(frozen=True)
class RunningMeanStd:
    """Statistics of a stream, as they were when they were asked for."""

    mean: np.ndarray
    var: np.ndarray
    count: float


class VecNormalize(VecEnvWrapper):
    """Asks for normalised observations and rewards.

    The statistics live in the agent, are updated by its learning and saved with it, and `predict` applies
    them: so the observations and rewards that `reset` and `step` return here are the raw ones.
    """

    def __init__(
        self,
        venv: VecEnv,
        training: bool = True,
        norm_obs: bool = True,
        norm_reward: bool = True,
        clip_obs: float = 10.0,
        clip_reward: float = 10.0,
        gamma: float = 0.99,
        epsilon: float = EPSILON,
        norm_obs_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(venv)
        if epsilon != EPSILON:
            raise ConfigError(f"VecNormalize's epsilon is fixed at {EPSILON} here; leave it out.")
        names = _normalised_names(self.observation_space)
        if norm_obs_keys is not None and set(norm_obs_keys) != set(names):
            raise ConfigError(
                f"VecNormalize normalises all parts of an observation that are real numbers "
                f"({', '.join(names)}); norm_obs_keys cannot leave some out. Scale those in the "
                "environment instead."
            )
        self.training = training
        self.norm_obs = norm_obs
        self.norm_reward = norm_reward
        self.clip_obs = clip_obs
        self.clip_reward = clip_reward
        self.gamma = gamma
        self.epsilon = epsilon
        self.loaded: dict[str, np.ndarray] = {}
        """statistics from a file, by name, until a model is given"""
        self._model: Any = lambda: None
        self._obs: Any = None
        self._reward = np.zeros(venv.num_envs, np.float32)

    # -- the environment ---------------------------------------------------------------------------------

    def reset(self) -> Any:
        self._obs = self.venv.reset()
        return self._obs

    def step_wait(self) -> Answer:
        self._obs, self._reward, dones, infos = self.venv.step_wait()
        return self._obs, self._reward, dones, infos

    def get_original_obs(self) -> Any:
        return self._obs

    def get_original_reward(self) -> np.ndarray:
        return self._reward

    # -- the statistics ----------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """What an algorithm's configuration must say."""
        return {
            "normalize_obs": self.norm_obs,
            "normalize_reward": self.norm_reward,
            "clip_obs": self.clip_obs,
            "clip_reward": self.clip_reward,
        }

    def bind(self, model: Any) -> None:
        """The agent whose statistics these are from now on."""
        self._model = weakref.ref(model)

    def statistics(self) -> dict[str, np.ndarray]:
        """Count, mean and sum of squared deviations by name, of the agent or of the file."""
        model = self._model()
        return self.loaded if model is None else model.normalisation()

    @property
    def obs_rms(self) -> Any:
        """Statistics of the observations; a dict of them for Dict observations."""
        import gymnasium.spaces as gs

        space = self.observation_space
        if isinstance(space, gs.Dict):
            return {name: self._rms(f"obs/{name}", space[name].shape) for name in _normalised_names(space)}
        return self._rms("obs/", space.shape)

    @property
    def ret_rms(self) -> RunningMeanStd:
        """Statistics of the discounted return."""
        return self._rms("return", ())

    def _rms(self, name: str, shape: tuple[int, ...]) -> RunningMeanStd:
        known = self.statistics()
        count = float(known.get(f"{name}.count", np.zeros(())))
        mean = known.get(f"{name}.mean", np.zeros(shape, np.float32))
        if count <= 1:
            return RunningMeanStd(np.array(mean), np.ones(shape, np.float32), count)
        return RunningMeanStd(np.array(mean), np.asarray(known[f"{name}.m2"]) / np.float32(count), count)

    def normalize_obs(self, obs: Any) -> Any:
        """What the policy sees of raw observations; `predict` takes either."""
        if not self.norm_obs:
            return obs
        rms = self.obs_rms
        if not isinstance(rms, dict):
            return self._normalised(obs, rms)
        return {
            name: self._normalised(part, rms[name]) if name in rms else part for name, part in obs.items()
        }

    def _normalised(self, obs: Any, rms: RunningMeanStd) -> Normalised:
        raw = np.asarray(obs)
        scaled = (raw - rms.mean) / np.sqrt(rms.var + np.float32(self.epsilon))
        made: Normalised = np.clip(scaled, -self.clip_obs, self.clip_obs).astype(np.float32).view(Normalised)
        made.raw = raw
        return made

    def unnormalize_obs(self, obs: Any) -> Any:
        """Raw observations of normalised ones."""
        rms = self.obs_rms
        if isinstance(obs, dict):
            return {name: _undone(part, rms[name]) if name in rms else part for name, part in obs.items()}
        return _undone(obs, rms) if self.norm_obs else obs

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        """What the losses see of raw rewards."""
        if not self.norm_reward:
            return reward
        scaled = reward / np.sqrt(self.ret_rms.var + self.epsilon)
        return np.clip(scaled, -self.clip_reward, self.clip_reward)

    def unnormalize_reward(self, reward: np.ndarray) -> np.ndarray:
        return reward * np.sqrt(self.ret_rms.var + self.epsilon) if self.norm_reward else reward

    # -- files -------------------------------------------------------------------------------------------

    def save(self, save_path: str | Path) -> None:
        """Writes settings and statistics as safetensors, whatever the file is called."""
        from sparring.runs import tensors
        from sparring.runs.durable import replace_file

        flags = {name: np.asarray(float(getattr(self, name)), np.float64) for name in FLAGS}
        path = Path(save_path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, tensors.encode({**flags, **self.statistics()}))
        except OSError as error:
            raise StorageError(f"{str(path)!r} could not be written: {error.strerror or error}.") from error

    @staticmethod
    def load(load_path: str | Path, venv: VecEnv) -> VecNormalize:
        """What `save` wrote, around another environment with the same spaces."""
        from sparring.runs import tensors

        path = Path(load_path)
        if not path.is_file():
            raise CheckpointError(f"There is no saved VecNormalize at {str(path)!r}.")
        try:
            known = tensors.read(path)
            flags = {name: float(known.pop(name)) for name in FLAGS}
        except (CheckpointError, KeyError) as error:
            raise CheckpointError(
                f"{str(path)!r} is no VecNormalize that sparring saved. A pickle of Stable-Baselines3 cannot "
                "be read, because pickles can run code; save it again with sparring."
            ) from error
        made = VecNormalize(
            venv, clip_obs=flags["clip_obs"], clip_reward=flags["clip_reward"], gamma=flags["gamma"]
        )
        for name in ("training", "norm_obs", "norm_reward"):
            setattr(made, name, bool(flags[name]))
        for name, array in known.items():
            _check_shape(venv.observation_space, name, array, path)
        made.loaded = known
        return made


def unwrap_vec_normalize(env: VecEnv) -> VecNormalize | None:
    """The VecNormalize around an environment, or None."""
    return unwrap_vec_wrapper(env, VecNormalize)


def sync_envs_normalization(env: VecEnv, eval_env: VecEnv) -> None:
    """Nothing to do: both environments return raw observations, and the agent that acts normalises them."""


def _normalised_names(space: Any) -> list[str]:
    """The parts of a Dict observation that are real numbers."""
    import gymnasium.spaces as gs

    if not isinstance(space, gs.Dict):
        return []
    return [name for name, part in space.items() if isinstance(part, gs.Box) and part.dtype != np.uint8]


def _undone(obs: Any, rms: RunningMeanStd) -> Any:
    return np.asarray(obs) * np.sqrt(rms.var + np.float32(EPSILON)) + rms.mean


def _check_shape(space: Any, name: str, array: np.ndarray, path: Path) -> None:
    """Statistics of other observations are refused."""
    import gymnasium.spaces as gs

    if not name.startswith("obs/") or name.endswith(".count"):
        return
    part = name.removeprefix("obs/").rpartition(".")[0]
    inner = space.spaces.get(part) if isinstance(space, gs.Dict) else None if part else space
    if inner is None or inner.shape != array.shape:
        raise CheckpointError(
            f"{str(path)!r} holds statistics {name} of shape {array.shape}, which do not fit observations in "
            f"{space}. Use the environment that it was saved with."
        )
