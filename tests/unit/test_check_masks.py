"""`check-env` and action masks: only legal actions are taken, and a mask that cannot be used is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from sparring.envs import masks, registry
from sparring.envs.check import Finding, check
from sparring.envs.gymnasium import GymRows
from sparring.envs.probes import Masked
from sparring.errors import EnvironmentFailure
from sparring.spaces import Box, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space

spaces = gymnasium.spaces


class Strict(gymnasium.Env):
    """Raises on an illegal action; a subclass says where and how its masks are told."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space: Any = spaces.Discrete(5, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.allowed = 0, self._draw()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.legal(action), f"{action} is not legal"
        self.t, self.allowed = self.t + 1, self._draw()
        return self._obs(), 0.0, self.t > 6, False, {}

    def legal(self, action: Any) -> bool:
        return bool(self.allowed[action - 3])

    def _draw(self) -> np.ndarray:
        mask = self.np_random.random(5) < 0.3
        mask[self.np_random.integers(5)] = True
        return mask

    def _obs(self) -> np.ndarray:
        return self.np_random.random(1).astype(np.float32)


class ByMethod(Strict):
    def action_masks(self) -> np.ndarray:
        return self.allowed


class ByInfo(Strict):
    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": self.allowed.astype(np.int8)}

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], {"action_mask": self.allowed.astype(np.int8)}


class Branches(ByMethod):
    action_space = spaces.MultiDiscrete([2, 3])

    def legal(self, action: Any) -> bool:
        return bool(self.allowed[action[0]] and self.allowed[2 + action[1]])

    def _draw(self) -> np.ndarray:
        mask = np.zeros(5, bool)
        mask[self.np_random.integers(2)] = mask[2 + self.np_random.integers(3)] = True
        return mask


def found(env: Any, level: str, what: str) -> Finding:
    findings = check(env)
    hits = [f for f in findings if f.level == level and what in f.what]
    assert hits, findings
    return hits[0]


@pytest.mark.parametrize("kind", [ByMethod, Branches])
def test_only_legal_actions_are_taken(kind: type[Strict]) -> None:
    assert not {f.level for f in check([kind])} & {"error", "warning"}
    assert "action_masks() left" in found([kind], "ok", "only those were taken").what


def test_wrapped_masks_are_found() -> None:
    assert not {f.level for f in check([lambda: gymnasium.wrappers.TimeLimit(ByMethod(), 3)])} & {"error"}


def test_masks_in_info_are_kept_to_and_named_as_unread() -> None:
    advice = found([ByInfo], "advice", "info['action_mask'] left")
    assert "action_masks()" in advice.fix
    (error,) = [f for f in check([ByInfo]) if f.level == "error"]
    assert "training does not read it" in error.what
    assert "not legal" in error.why
    assert not GymRows([ByInfo]).spec.masks_actions


def test_without_masks_nothing_is_said_about_them() -> None:
    assert not [f for f in check("gym:CartPole-v1") if "mask" in f.what or "legal" in f.what]


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (np.ones(4, bool), "its shape is (4,), Discrete(n=5) needs (5,)"),
        (np.zeros(5, bool), "no action is legal"),
        (np.full(5, 0.5), "entries like 0.5"),
        (None, "it is"),
    ],
)
def test_masks_that_cannot_be_used_are_errors(mask: Any, why: str) -> None:
    class Wrong(ByMethod):
        def action_masks(self) -> Any:
            return mask

        def legal(self, action: Any) -> bool:
            return True

    finding = found([Wrong], "error", "cannot be used")
    assert why in finding.why
    assert "5 bools" in finding.fix


def test_measuring_a_step_takes_legal_actions_only() -> None:
    assert registry.step_cost(ByMethod) > 0


def test_an_unusable_mask_stops_training_with_its_reason() -> None:
    class Short(ByMethod):
        def action_masks(self) -> Any:
            return [True, False]

    with pytest.raises(EnvironmentFailure, match=r"its shape is \(2,\).*check-env"):
        GymRows([Short]).reset(0)


@pytest.mark.parametrize(
    ("space", "mask", "why"),
    [
        (MultiDiscrete((2, 3)), [1, 0, 0, 0, 0], "branch 1"),
        (MultiDiscrete((2, 3)), [1, 0, 0, 0, 1], None),
        (MultiBinary(2), [0, 0], None),
        (MultiBinary(2), [1, 0, 1, 0], "one entry, not two"),
        (Box((2,), -1.0, 1.0), [True, False], None),
    ],
)
def test_faults(space: Space, mask: Any, why: str | None) -> None:
    fault = masks.fault(space, mask)
    assert fault is None if why is None else why in str(fault)


@pytest.mark.parametrize(
    ("space", "size"),
    [(Discrete(6), 6), (MultiDiscrete((3, 2)), 5), (MultiBinary(4), 4), (Box((3,), -1, 1), 3)],
)
def test_choices_are_legal_and_cover_what_is(space: Space, size: int) -> None:
    generator = np.random.default_rng(0)
    legal = np.tile(np.arange(size) % 2 == 0, (400, 1))
    chosen = masks.choose(space, generator, (400,), legal)
    match space:
        case Discrete():
            assert set(chosen.tolist()) == {0, 2, 4}
        case MultiDiscrete():  # options 0 and 2 of the first branch, the second of the other
            assert {tuple(row) for row in chosen.tolist()} == {(0, 1), (2, 1)}
        case _:
            assert not chosen[:, 1].any()
            assert chosen[:, 0].any()


class NoLegal(Masked):
    legal = None  # type: ignore[assignment]


class Unsaid(Masked):
    @property
    def spec(self) -> EnvSpec:
        return EnvSpec("unsaid", Box((4,), 0.0, 1.0), Discrete(4))


class Numbers(Masked):
    def legal(self, state: Any) -> Any:
        return jnp.ones(4)


class Nothing(Masked):
    def legal(self, state: Any) -> Any:
        return super().legal(state) & (state.context != 2)


@pytest.mark.parametrize(
    ("env", "what"),
    [
        (NoLegal(), "no `legal"),
        (Unsaid(), "not used"),
        (Numbers(), "float32[4]"),
        (Nothing(), "no action is legal"),
    ],
)
def test_flaws_of_jax_masks_are_found(env: Any, what: str) -> None:
    assert found(env, "error", what).fix


@dataclass(frozen=True)
class Fatal(Masked):
    """Returns NaN for an illegal action."""

    def step(self, state: Any, action: Any, key: Any) -> Any:
        after, outcome = super().step(state, action, key)
        return after, outcome._replace(reward=jnp.where(outcome.reward < -1, jnp.nan, outcome.reward))


def test_jax_environments_get_legal_actions_only() -> None:
    assert "error" not in {f.level for f in check(Fatal())}
    found(Fatal(), "ok", "50% of the actions were legal")
