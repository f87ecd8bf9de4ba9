"""A log of all rows' episodes."""

from __future__ import annotations

from typing import Any

from sparring.common.monitor import Results
from sparring.common.vec_env.base import Answer, VecEnv, VecEnvWrapper
from sparring.common.vec_env.tally import Tally


class VecMonitor(VecEnvWrapper):
    """Puts `episode` into the infos at every episode's end, and into a CSV file if one is named."""

    def __init__(
        self, venv: VecEnv, filename: str | None = None, info_keywords: tuple[str, ...] = ()
    ) -> None:
        super().__init__(venv)
        self._tally = Tally(venv.num_envs)
        self._keywords = info_keywords
        env_id = getattr(getattr(getattr(venv.unwrapped, "rows", None), "spec", None), "id", None)
        self._results = None if filename is None else Results(filename, env_id, extra=info_keywords)

    def reset(self) -> Any:
        self._tally.start()
        return self.venv.reset()

    def step_wait(self) -> Answer:
        obs, rewards, dones, infos = self.venv.step_wait()
        for row, record in self._tally.add(rewards, dones).items():
            infos[row]["episode"] = record | {name: infos[row][name] for name in self._keywords}
            if self._results is not None:
                self._results.write(infos[row]["episode"])
        return obs, rewards, dones, infos

    def close(self) -> None:
        if self._results is not None:
            self._results.close()
        self.venv.close()
