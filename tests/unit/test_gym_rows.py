"""The loop over Gymnasium environments: faults, journals, limits, presets."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from sparring.envs import source as source_module
from sparring.envs.gymnasium import GymRows
from sparring.envs.journal import Journal
from sparring.envs.source import GymId, InFile, legacy_gym, refuse_legacy
from sparring.envs.vector import VectorRows
from sparring.errors import ConfigError, EnvironmentFailure, MissingExtra, SpaceMismatch, UnknownName

OWN = Path(__file__).parents[1] / "contract" / "own_envs.py"


class Scripted(gymnasium.Env):
    """Returns what it is told to."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, result: Any = None, first: Any = None) -> None:
        self.result = result
        self.first = first

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return (np.zeros(2, np.float32), {}) if self.first is None else self.first

    def step(self, action: int) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return (np.zeros(2, np.float32), 1.0, False, False, {}) if self.result is None else self.result


def step(result: Any) -> Any:
    rows = GymRows([Scripted, lambda: Scripted(result)], label="Mine")
    rows.reset(0)
    return rows.step(np.array([0, 1], np.int32))


GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (RuntimeError("boom"), ["Mine", "row 1", "episode 0", "step 1", "RuntimeError: boom", "action 1"]),
        (
            (np.array([0, np.nan], np.float32), 0.0, False, False, {}),
            ["Mine", "row 1", "observation", "nan", "[1]"],
        ),
        ((np.array([0, np.inf], np.float32), 0.0, False, False, {}), ["observation", "inf"]),
        ((GOOD, float("nan"), False, False, {}), ["row 1", "reward", "nan"]),
        ((GOOD, 0.0, False, {}), ["row 1", "4 values", "legacy"]),
        (GOOD, ["row 1", "ndarray"]),
        ((np.zeros(3, np.float32), 0.0, False, False, {}), ["Mine", "observation space"]),
        ((GOOD, np.zeros(2), False, False, {}), ["Mine", "scalar reward"]),
    ],
)
def test_a_bad_step_is_explained(result: Any, words: list[str]) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        step(result)
    for word in words:
        assert word in str(caught.value)


def test_the_environments_own_traceback_is_kept() -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        step(RuntimeError("boom"))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (np.zeros(2, np.float32), ["Gymnasium's API", "(observation, info)"]),
        ((np.full(2, np.nan, np.float32), {}), ["not finite"]),
        ((np.zeros(5, np.float32), {}), ["observation space"]),
    ],
)
def test_a_bad_reset_is_explained(first: Any, words: list[str]) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        GymRows([lambda: Scripted(first=first)], label="Mine").reset(0)
    for word in words:
        assert word in str(caught.value)


def test_both_flags_mean_termination() -> None:
    result = step((GOOD, 1.0, True, True, {}))
    assert result.terminated.tolist() == [False, True]
    assert result.truncated.tolist() == [False, False]


def test_rows_with_other_spaces_are_refused() -> None:
    with pytest.raises(SpaceMismatch, match="Row 1"):
        GymRows([GymId("CartPole-v1"), GymId("Acrobot-v1")])


def test_infos_of_the_last_step_are_kept() -> None:
    rows = GymRows([InFile(f"{OWN}:Parts")] * 2)
    rows.reset(0)
    rows.step(np.array([0, 2], np.int32))
    assert [info["action"] for info in rows.last_infos] == [5, 7]


def test_legal_actions_follow_the_observation() -> None:
    rows = GymRows([InFile(f"{OWN}:Masked")])
    assert rows.spec.masks_actions
    legal = [rows.reset(0).legal]
    legal += [rows.step(np.array([0], np.int32)).legal for _ in range(4)]
    assert [list(mask[0]).index(False) for mask in legal if mask is not None] == [0, 1, 2, 0, 0]


# -- resuming ------------------------------------------------------------------------------------------------


def test_state_that_survives_reset_is_noticed_on_restore() -> None:
    rows = GymRows([InFile(f"{OWN}:KeepsState")] * 2)
    rows.reset(0)
    for _ in range(7):
        rows.step(np.array([0, 1], np.int32))
    other = GymRows([InFile(f"{OWN}:KeepsState")] * 2)
    restored = other.restore(rows.snapshot(), 0)
    assert restored.lost is not None
    assert restored.lost.tolist() == [True, True]
    events = other.events()
    assert len(events) == 2
    assert "could not be restored exactly" in events[0]
    assert other.episodes == [2, 2]
    assert other.events() == []


def test_rebuilding_every_episode_makes_the_restore_exact() -> None:
    rows = GymRows([InFile(f"{OWN}:KeepsState")] * 2, fresh_every_episode=True)
    rows.reset(0)
    for _ in range(7):
        rows.step(np.array([0, 1], np.int32))
    other = GymRows([InFile(f"{OWN}:KeepsState")] * 2, fresh_every_episode=True)
    assert other.restore(rows.snapshot(), 0).lost is None
    action = np.array([1, 1], np.int32)
    assert np.array_equal(rows.step(action).obs, other.step(action).obs)


def test_a_snapshot_of_other_rows_is_refused() -> None:
    rows = GymRows([GymId("CartPole-v1")] * 2)
    rows.reset(0)
    with pytest.raises(EnvironmentFailure, match="n_envs"):
        GymRows([GymId("CartPole-v1")]).restore(rows.snapshot(), 0)


def test_a_changed_observation_in_the_snapshot_is_noticed() -> None:
    rows = GymRows([GymId("CartPole-v1")])
    rows.reset(0)
    rows.step(np.array([1], np.int32))
    snapshot = rows.snapshot()
    snapshot["obs."] = np.nextafter(snapshot["obs."], np.float32(1))
    assert GymRows([GymId("CartPole-v1")]).restore(snapshot, 0).lost is not None


def test_a_journal_keeps_the_actions_of_open_episodes() -> None:
    journal, generator = Journal(np.zeros(3, np.int32), capacity=4), np.random.default_rng(0)
    expected: list[list[int]] = [[], [], []]
    for t in range(2000):
        action = generator.integers(0, 9, 3).astype(np.int32)
        journal.append(action)
        for row in range(3):
            expected[row].append(int(action[row]))
            if row < 2 and generator.random() < 0.02:
                journal.begin(row)
                expected[row] = []
        if t % 97 == 0:
            for row in range(3):
                actions = journal.actions(row)
                assert actions is not None
                assert actions.tolist() == expected[row]


def test_a_journal_forgets_rather_than_grow_without_end() -> None:
    journal = Journal(np.zeros(2, np.int32), capacity=4, max_bytes=8 * 64)
    for t in range(500):
        journal.append(np.full(2, t, np.int32))
        if t == 450:
            journal.begin(1)
    assert journal.actions(0) is None
    assert len(journal._actions) <= 64
    recent = journal.actions(1)
    assert recent is None or recent.tolist() == list(range(451, 500))


# -- building ------------------------------------------------------------------------------------------------


def test_an_unknown_id_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match="LunarLander-v3"):
        GymRows([GymId("LunarLandr-v3")])


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (gymnasium.error.DependencyNotInstalled("Box2D is not installed"), "sparring[box2d]"),
        (
            gymnasium.error.DependencyNotInstalled(
                'pygame is not installed, run `pip install "gymnasium[box2d]"`'
            ),
            "'pygame' is not installed. Install it with: pip install 'sparring[classic]'",
        ),
        (ModuleNotFoundError("No module named 'mujoco'", name="mujoco"), "sparring[mujoco]"),
        (ModuleNotFoundError("No module named 'cv2'", name="cv2"), "sparring[atari]"),
        (gymnasium.error.DependencyNotInstalled("opencv-python package not installed"), "sparring[atari]"),
    ],
)
def test_a_missing_dependency_names_the_command(
    error: Exception, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(gymnasium, "make", broken)
    with pytest.raises(MissingExtra, match=command.replace("[", r"\[").replace("]", r"\]")):
        GymId("CartPole-v1")()


def test_atari_without_ale_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gymnasium, "spec", lambda _: (_ for _ in ()).throw(gymnasium.error.NamespaceNotFound("ALE"))
    )
    monkeypatch.setattr(source_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"pip install 'sparring\[atari\]'"):
        GymId("ALE/Pong-v5").registered()


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(ConfigError, match="wheels"):
        GymRows([GymId("CartPole-v1", {"wheels": 4})])


def test_legacy_gym_is_found_without_importing_it(tmp_path: Path) -> None:
    assert legacy_gym() is None or "gym" not in sys.modules
    package = tmp_path / "gym"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from sparring.envs.source import legacy_gym; print(legacy_gym())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "legacy package gym" in out.stdout
    assert "import gymnasium as gym" in out.stdout


def test_a_legacy_environment_object_is_refused() -> None:
    module = types.ModuleType("gym.core")
    legacy = type("OldEnv", (), {"__module__": module.__name__, "reset": None, "step": None})
    with pytest.raises(EnvironmentFailure, match="shimmy"):
        refuse_legacy(legacy())


def test_workers_and_rows_import_no_jax() -> None:
    code = (
        "import sys, sparring.envs.workers, sparring.envs.worker_process, sparring.envs.vector, "
        "sparring.envs.registry; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_jax_environments_need_no_gymnasium() -> None:
    code = (
        "import sys; sys.modules['gymnasium'] = None\n"
        "from sparring.envs import registry, batched\n"
        "host = registry.host(registry.make('CartPole-v1'), 2); host.reset(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# -- Atari ---------------------------------------------------------------------------------------------------


def test_pong_with_ram_observations() -> None:
    pytest.importorskip("ale_py")
    rows = GymRows([GymId("ALE/Pong-v5", {"obs_type": "ram"}), GymId("ALE/Pong-ram-v5")])
    obs = rows.reset(0).obs
    assert obs.shape == (2, 128)
    assert obs.dtype == np.uint8
    rows.step(np.array([2, 3], np.int32))
    rows.close()


def test_old_ids_of_ram_are_their_games_and_begin_late_by_their_seed() -> None:
    pytest.importorskip("ale_py")
    plain, wrapped = GymId("Pong-ram-v4")(), GymId("Pong-ramNoFrameskip-v4", atari_wrap=True)()
    began, seen = [], []
    for seed in (3, 3, 4, 5, 6):
        seen.append(wrapped.reset(seed=seed)[0])
        began.append(wrapped.unwrapped.ale.getEpisodeFrameNumber())
    assert plain.reset(seed=3)[0].shape == seen[0].shape == (128,)
    assert (plain.spec.id, wrapped.spec.id) == ("Pong-v4", "PongNoFrameskip-v4")
    assert wrapped.unwrapped.ale.getFloat("repeat_action_probability") == 0.0
    assert np.array_equal(seen[0], seen[1])
    assert 1 <= min(began) < max(began) <= 30
    wrapped.step(0)
    assert wrapped.unwrapped.ale.getEpisodeFrameNumber() == began[-1] + 4
    plain.close()
    wrapped.close()


def test_an_id_that_only_looks_like_atari_is_what_was_registered() -> None:
    gymnasium.register("Dodge-ram-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
    try:
        assert GymId("Dodge-ram-v0").registered().entry_point.endswith("PendulumEnv")
    finally:
        del gymnasium.registry["Dodge-ram-v0"]


@pytest.mark.parametrize("env_id", ["ALE/Nosuch-v5", "Nosuch-ramNoFrameskip-v4", "NosuchNoFrameskip-v4"])
def test_without_ale_py_its_ids_name_the_extra(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"sparring\[atari\]"):
        GymId(env_id).registered()


def test_lives_do_not_end_episodes_of_ram() -> None:
    pytest.importorskip("ale_py")
    with pytest.raises(ConfigError, match="leave it out for ALE/Breakout-ram-v5"):
        GymId("ALE/Breakout-ram-v5", atari_wrap=True, life_ends_episode=True)()


def test_pong_with_pixels_resumes_exactly() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    source = GymId("ALE/Pong-v5", atari_wrap=True)
    rows = GymRows([source] * 2)
    obs = rows.reset(0).obs
    assert obs.shape == (2, 84, 84, 1)
    generator = np.random.default_rng(0)
    for _ in range(30):
        rows.step(generator.integers(0, 6, 2).astype(np.int32))
    other = GymRows([source] * 2)
    assert other.restore(rows.snapshot(), 0).lost is None
    action = np.array([2, 3], np.int32)
    assert np.array_equal(rows.step(action).obs, other.step(action).obs)
    rows.close()
    other.close()


# -- vector environments -------------------------------------------------------------------------------------


class Batch(gymnasium.vector.VectorEnv):
    """Counts to three in every row and resets in the same step; says so in one of several ways."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space = spaces.Dict({"t": spaces.Box(0, 9, (1,), np.float32)})
    single_action_space = spaces.Discrete(2)

    def __init__(self, form: str) -> None:
        self.form = form

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t = np.array([[0.0], [1.0]], np.float32)
        return {"t": self.t}, {}

    def step(self, actions: Any) -> Any:
        self.t = self.t + 1
        ended = self.t[:, 0] >= 3
        last = self.t.copy()
        self.t[ended] = 0
        infos: dict[str, Any] = {}
        if ended.any():
            rows = np.array(
                [{"t": row} if end else None for row, end in zip(last, ended, strict=True)], object
            )
            infos = {
                "dict": {"final_obs": {"t": last}, "_final_obs": ended},
                "objects": {"final_obs": rows, "_final_obs": ended},
                "old": {"final_observation": rows},
                "none": {},
                "unmasked": {"final_obs": rows, "_final_obs": np.zeros(2, bool)},
            }[self.form]
        return {"t": self.t.copy()}, np.ones(2), ended, np.zeros(2, bool), infos


@pytest.mark.parametrize("form", ["dict", "objects", "old"])
def test_the_final_observation_is_found_in_every_form(form: str) -> None:
    rows = VectorRows(Batch(form))
    rows.reset(0)
    steps = [rows.step(np.zeros(2, np.int32)) for _ in range(3)]
    assert [s.next_obs["t"][:, 0].tolist() for s in steps] == [[1, 2], [2, 3], [3, 1]]
    assert [s.obs["t"][:, 0].tolist() for s in steps] == [[1, 2], [2, 0], [0, 1]]


@pytest.mark.parametrize("form", ["none", "unmasked"])
def test_a_missing_final_observation_is_an_error(form: str) -> None:
    rows = VectorRows(Batch(form))
    rows.reset(0)
    rows.step(np.zeros(2, np.int32))
    with pytest.raises(EnvironmentFailure, match="final_obs"):
        rows.step(np.zeros(2, np.int32))


def test_a_vector_environment_must_say_how_it_resets() -> None:
    env = Batch("dict")
    env.metadata = {}
    with pytest.raises(ConfigError, match="autoreset_mode"):
        VectorRows(env)
    assert VectorRows(env, autoreset_mode="SAME_STEP").autoreset_mode == "SAME_STEP"
    assert VectorRows(env, autoreset_mode="NextStep").autoreset_mode == "NEXT_STEP"
