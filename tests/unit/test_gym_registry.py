"""Environments by name, and what `check-env` finds."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from sparring.envs import batched, registry
from sparring.envs.check import Finding, check
from sparring.envs.classic.cartpole import CartPole
from sparring.envs.gymnasium import GymRows
from sparring.envs.vector import VectorRows
from sparring.envs.workers import WorkerRows
from sparring.errors import ConfigError, EnvironmentFailure, UnknownName
from sparring.spaces import zeros

pytestmark = pytest.mark.filterwarnings("ignore:builtin type [sS]wig.*:DeprecationWarning")

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "contract" / "own_envs.py"


def test_a_native_id_gives_the_jax_environment() -> None:
    assert registry.make("CartPole-v1") == CartPole()
    assert registry.is_jax("CartPole-v1")
    assert registry.is_jax(CartPole())
    assert not registry.is_jax("gym:CartPole-v1")
    assert registry.make(CartPole()) == CartPole()
    assert registry.make("Pendulum-v1", kwargs={"g": 9.81}).g == 9.81


@pytest.mark.parametrize("env_id", registry.jax_ids())
def test_every_native_id_builds_what_its_spec_says(env_id: str) -> None:
    env = registry.make(env_id)
    assert env.spec.id == env_id
    assert type(env).__doc__


def test_a_time_limit_is_set_on_a_jax_environment() -> None:
    env = registry.make("probe/masked", time_limit=2)
    assert env.spec.time_limit == 2
    assert env.spec.masks_actions
    host = registry.host(env, 2)
    assert host.reset(0).legal.shape == (2, 4)


def test_prefixes_force_the_adapter() -> None:
    rows = registry.make("gym:CartPole-v1", n_envs=2)
    assert isinstance(rows, GymRows)
    assert rows.spec.rows == 2
    assert rows.spec.id == "CartPole-v1"
    pool = registry.make("envpool:CartPole-v1", n_envs=2)
    assert type(pool).__name__ == "EnvPoolRows"
    pool.close()


def test_other_ids_are_gymnasiums() -> None:
    assert isinstance(registry.make("FrozenLake-v1"), GymRows)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("Hoper-v5", "Hopper-v5"),
        ("probe/mask", "probe/masked"),
        ("envpool:Pon-v5", "Pong-v5"),
    ],
)
def test_an_unknown_name_offers_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UnknownName, match=nearest):
        registry.make(name)


def test_a_deprecated_id_names_its_successor() -> None:
    with pytest.raises(UnknownName, match="Taxi-v4"):
        registry.make("Taxi-v3")


def test_environments_of_the_users_own_file(tmp_path: Path) -> None:
    assert isinstance(registry.make(f"{OWN}:Parts", n_envs=2), GymRows)
    path = tmp_path / "mine.py"
    path.write_text(
        "from sparring.envs.classic.cartpole import CartPole\n"
        "import gymnasium\n"
        "env = CartPole()\n"
        "def jax_env(sutton_barto_reward=False): return CartPole(sutton_barto_reward)\n"
        "def vector(): return gymnasium.make_vec('CartPole-v1', 2)\n"
        "def broken(): raise TypeError('no')\n"
    )
    assert registry.make(f"{path}:env") == CartPole()
    assert registry.make(f"{path}:jax_env", kwargs={"sutton_barto_reward": True}) == CartPole(True)
    assert isinstance(registry.make(f"{path}:vector"), VectorRows)
    with pytest.raises(UnknownName, match="jax_env"):
        registry.make(f"{path}:jaxenv")
    with pytest.raises(ConfigError, match="arguments"):
        registry.make(f"{path}:jax_env", kwargs={"wheels": 3})
    with pytest.raises(UnknownName, match="no file"):
        registry.make(f"{tmp_path}/other.py:env")


def test_objects_and_factories() -> None:
    env = gymnasium.make("CartPole-v1")
    rows = registry.make(env)
    assert rows.envs[0] is env
    assert rows.spec.time_limit == 500
    assert registry.make(rows) is rows
    with pytest.raises(ConfigError, match="list of functions"):
        registry.make(env, n_envs=2)
    many = registry.make([lambda: gymnasium.make("CartPole-v1")] * 3)
    assert many.spec.rows == 3
    assert many.spec.id == "CartPole-v1"
    with pytest.raises(ConfigError, match="3 factories"):
        registry.make([lambda: env] * 3, n_envs=2)
    vector = registry.make(gymnasium.make_vec("CartPole-v1", 2))
    assert isinstance(vector, VectorRows)
    with pytest.raises(EnvironmentFailure, match="no environment"):
        registry.make(object())


@pytest.mark.parametrize("bad", [{"n_envs": 0}, {"time_limit": 0}, {"backend": "threads"}])
def test_impossible_options_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        registry.make("CartPole-v1", **bad)


def test_the_backend_is_chosen_by_step_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "usable_cores", lambda: 4)
    source = functools.partial(gymnasium.make, "CartPole-v1")
    monkeypatch.setattr(registry, "step_cost", lambda _: 20e-6)
    assert registry.choose_backend([source] * 8)[0] == "inline"
    monkeypatch.setattr(registry, "step_cost", lambda _: 5e-3)
    backend, reason = registry.choose_backend([source] * 8)
    assert backend == "workers"
    assert "5000 µs" in reason
    assert registry.choose_backend([source])[0] == "inline"
    assert registry.choose_backend([source] * 8, "inline")[0] == "inline"
    monkeypatch.setattr(registry, "usable_cores", lambda: 1)
    assert registry.choose_backend([source] * 8)[0] == "inline"


def test_the_reason_is_told() -> None:
    rows = registry.make("gym:CartPole-v1", n_envs=2)
    assert "µs" in rows.backend_reason or "one core" in rows.backend_reason
    apart = registry.make("gym:CartPole-v1", n_envs=2, backend="workers")
    assert isinstance(apart, WorkerRows)
    assert apart.backend_reason == "workers, as asked for"
    apart.close()


def test_the_package_is_light() -> None:
    code = (
        "import sys, sparring.envs.registry as registry; registry.jax_ids()\n"
        "assert not {'jax', 'gymnasium'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_no_key_is_used_twice() -> None:
    with jax.debug_key_reuse(True):
        for env_id in ("CartPole-v1", "probe/masked", "probe/dict", "probe/multiply"):
            env = registry.make(env_id)
            state, _ = jax.jit(batched.reset, static_argnums=(0, 2))(env, jax.random.key(0), 2)
            action = zeros(env.spec.action, (2,))
            jax.jit(batched.step, static_argnums=0)(env, state, action, jax.random.key(1))


def test_classic_environments_are_drawn() -> None:
    for env_id in ("CartPole-v1", "MountainCar-v0", "Acrobot-v1", "Pendulum-v1"):
        host = registry.host(registry.make(env_id), 2)
        host.reset(0)
        frame = host.render()
        assert frame.ndim == 3
        assert frame.dtype == np.uint8
        host.close()
    assert registry.host(registry.make("probe/masked"), 1).reset(0) is not None


# -- check-env -----------------------------------------------------------------------------------------------


class Custom(gymnasium.Env):
    """Behaves well unless told otherwise."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    flaw = ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return (self._obs(), {}) if self.flaw != "old reset" else self._obs()

    def step(self, action: int) -> Any:
        self.t += 1
        ended = self.t >= 20 if self.flaw == "limit" else bool(self.np_random.random() < 0.1)
        reward = float("nan") if self.flaw == "nan" else 1000.0 if self.flaw == "reward" else 1.0
        if self.flaw == "old step":
            return self._obs(), reward, ended, {}
        return self._obs(), reward, ended, False, {}

    def _obs(self) -> Any:
        generator = np.random.default_rng() if self.flaw == "unseeded" else self.np_random
        obs = generator.uniform(-1, 1, 2).astype(np.float32)
        if self.flaw == "deterministic":
            obs[:] = 0
        return obs * 50 if self.flaw == "range" else obs.astype(np.float64) if self.flaw == "dtype" else obs


def flawed(flaw: str) -> type[Custom]:
    return type("Flawed", (Custom,), {"flaw": flaw})


def levels(findings: list[Finding]) -> set[str]:
    return {finding.level for finding in findings}


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "gym:CartPole-v1", "LunarLander-v3", "probe/dict", "probe/masked"]
)
def test_good_environments_have_no_faults(env: str) -> None:
    assert not levels(check(env)) & {"error", "warning"}


@pytest.mark.parametrize(
    ("flaw", "level", "what"),
    [
        ("", "ok", "same seed"),
        ("old reset", "error", "API"),
        ("old step", "error", "API"),
        ("limit", "warning", "exactly 20 steps"),
        ("nan", "error", "reward is NaN"),
        ("reward", "advice", "rewards reach"),
        ("unseeded", "warning", "same seed and actions gave another"),
        ("range", "warning", "not in the observation space"),
        ("range", "advice", "reach"),
        ("dtype", "warning", "not in the observation space"),
    ],
)
def test_flaws_are_found(flaw: str, level: str, what: str) -> None:
    findings = check([flawed(flaw)])
    assert any(finding.level == level and what in finding.what for finding in findings), findings
    for finding in findings:
        if finding.level in ("error", "warning"):
            assert finding.fix


def test_state_that_survives_reset_is_found() -> None:
    findings = check(f"{OWN}:KeepsState")
    assert any(
        "survives reset" in finding.what and "fresh_every_episode" in finding.fix for finding in findings
    )


def test_a_vector_environment_is_checked() -> None:
    findings = check(gymnasium.make_vec("CartPole-v1", 2))
    assert any("NEXT_STEP" in finding.what for finding in findings)


def test_what_cannot_be_made_is_one_error() -> None:
    (finding,) = check("NoSuchThing-v0")
    assert finding.level == "error"
    assert "no environment" in finding.why


class Impure(CartPole):
    """Changes its dtype in step."""

    def step(self, state: Any, action: Any, key: Any) -> Any:
        after, outcome = super().step(state, action, key)
        return after._replace(x=after.x.astype(int)), outcome


class Branches(CartPole):
    """Decides in Python."""

    def step(self, state: Any, action: Any, key: Any) -> Any:
        if state.x > 0:
            return super().step(state, action, key)
        return super().step(state, action, key)


@pytest.mark.parametrize(("env", "what"), [(Impure(), "another kind of state"), (Branches(), "traced")])
def test_flaws_of_jax_environments_are_found(env: Any, what: str) -> None:
    findings = check(env)
    assert any(finding.level == "error" and what in finding.what for finding in findings), findings
