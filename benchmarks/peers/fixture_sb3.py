"""Write what one update of Stable-Baselines3 does, as an oracle for ours: tests/golden/sb3/*.npz.

    .venv-peers/bin/python benchmarks/peers/fixture_sb3.py [CASE …]

Each file holds the weights and the optimisers' states before the update, the weights after it, and between
them a rollout with terminations and truncations and the order of its minibatches, or a batch from the replay
and the noise that was drawn. The `agree` files also hold the noise of every action of a rollout in one
environment whose episodes begin from known seeds, and settings in which no definition differs from ours.
numpy alone reads them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "golden" / "sb3"
NETS = {"net_arch": {"pi": [16, 8], "vf": [8, 16]}}
PPO_SETTINGS = {"n_steps": 32, "batch_size": 32, "n_epochs": 3, "ent_coef": 0.01, "gae_lambda": 0.9}
CASES: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "ppo-discrete": (PPO, "CartPole-v1", 15, {**PPO_SETTINGS, "clip_range_vf": 0.3}),
    "ppo-box": (PPO, "Pendulum-v1", 20, PPO_SETTINGS),
    "a2c-discrete": (A2C, "CartPole-v1", 5, {"n_steps": 8, "ent_coef": 0.01, "gae_lambda": 0.9}),
}
AGREE_SETTINGS = {"n_steps": 64, "batch_size": 16, "n_epochs": 4, "ent_coef": 0.01, "gae_lambda": 0.9}
AGREE: dict[str, tuple[str, int]] = {"agree-discrete": ("CartPole-v1", 22), "agree-box": ("Pendulum-v1", 20)}
REPLAY = {"learning_starts": 40, "batch_size": 64, "buffer_size": 1000}
FROM_REPLAY: dict[str, tuple[Any, str, int, dict[str, Any]]] = {
    "dqn": (DQN, "CartPole-v1", 15, {"policy_kwargs": {"net_arch": [16, 8]}, "target_update_interval": 30}),
    "sac": (SAC, "Pendulum-v1", 20, {"policy_kwargs": {"net_arch": {"pi": [16, 8], "qf": [8, 16]}}}),
    "td3": (TD3, "Pendulum-v1", 20, {"policy_kwargs": {"net_arch": {"pi": [16, 8], "qf": [8, 16]}}}),
}


class Recorded:
    """A vector environment's outcomes as terminations, truncations and final observations."""

    def __init__(self, env: VecEnv) -> None:
        self.steps: list[dict[str, np.ndarray]] = []
        self.step_wait, env.step_wait = env.step_wait, self.record  # type: ignore[method-assign]

    def record(self) -> Any:
        obs, reward, done, infos = self.step_wait()
        cut = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        final = np.stack(
            [i["terminal_observation"] if d else o for o, d, i in zip(obs, done, infos, strict=True)]
        )
        step = {"reward": reward, "terminated": done & ~cut, "truncated": cut, "next_obs": final}
        self.steps.append({name: np.array(value) for name, value in step.items()})
        return obs, reward, done, infos


def weights(model: Any) -> dict[str, np.ndarray]:
    """The policy's parameters by SB3's names."""
    return {name: value.detach().numpy().copy() for name, value in model.policy.named_parameters()}


def optimiser(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The optimiser's state by parameter."""
    names = [name for name, _ in model.policy.named_parameters()]
    for index, state in model.policy.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            yield f"optimiser.{key}.{names[index]}", value.numpy().copy()


def fixture(case: str) -> dict[str, np.ndarray]:
    """Trains a little, then records one rollout and the update that follows it."""
    algorithm, env_id, limit, settings = CASES[case]
    env = make_vec_env(lambda: gym.make(env_id, max_episode_steps=limit), n_envs=4, seed=0)
    model = algorithm("MlpPolicy", env, policy_kwargs=NETS, seed=0, device="cpu", **settings)
    model.learn(4 * settings["n_steps"] * 3)
    _, callback = model._setup_learn(1_000_000, None)
    recorded = Recorded(env)
    model.collect_rollouts(env, callback, model.rollout_buffer, n_rollout_steps=settings["n_steps"])
    buffer = model.rollout_buffer
    data = {
        **{f"before.{name}": value for name, value in weights(model).items()},
        **dict(optimiser(model)),
        **{name: np.stack([step[name] for step in recorded.steps]) for name in recorded.steps[0]},
        "obs": buffer.observations.copy(),
        "action": buffer.actions.copy(),
        "log_prob": buffer.log_probs.copy(),
        "advantage": buffer.advantages.copy(),
        "returns": buffer.returns.copy(),
    }
    count = buffer.buffer_size * buffer.n_envs
    orders = [np.random.RandomState(epoch).permutation(count) for epoch in range(settings.get("n_epochs", 1))]
    waiting = iter(orders)
    shuffle, np.random.permutation = np.random.permutation, lambda _: next(waiting)
    model.train()
    np.random.permutation = shuffle
    rows = buffer.buffer_size  # SB3 flattens row by row, we flatten step by step
    data["order"] = np.stack([(order % rows) * buffer.n_envs + order // rows for order in orders])
    return data | {f"after.{name}": value for name, value in weights(model).items()}


class KnownEpisodes(gym.Wrapper):
    """Episode i begins from the seed that sparring gives episode i of row 0 for seed 0."""

    episode = 0

    def reset(self, **kwargs: Any) -> Any:
        seed = np.random.SeedSequence([0, 0, self.episode]).generate_state(1)[0]
        self.episode += 1
        return self.env.reset(seed=int(seed))


@contextmanager
def noise_of_actions() -> Iterator[list[np.ndarray]]:
    """Collects the standard normals and the exponentials that torch draws for actions."""
    drawn: list[np.ndarray] = []
    standard_normal, multinomial = torch.distributions.normal._standard_normal, torch.multinomial

    def normal(*args: Any, **kwargs: Any) -> torch.Tensor:
        drawn.append(standard_normal(*args, **kwargs))
        return drawn[-1]

    def choice(probs: torch.Tensor, *args: Any) -> torch.Tensor:
        before = torch.get_rng_state()
        chosen = multinomial(probs, *args)
        torch.set_rng_state(before)
        lots = torch.empty_like(probs).exponential_(1)  # as torch does: the largest p / q with q ~ Exp(1)
        assert torch.equal((probs / lots).argmax(-1, keepdim=True), chosen)
        drawn.append(lots)
        return chosen

    torch.distributions.normal._standard_normal, torch.multinomial = normal, choice
    try:
        yield drawn
    finally:
        torch.distributions.normal._standard_normal, torch.multinomial = standard_normal, multinomial


def agreement(case: str) -> dict[str, np.ndarray]:
    """Trains a little, then records a rollout from its first seed on, with all noise, and its update."""
    env_id, limit = AGREE[case]
    inner: list[KnownEpisodes] = []

    def build() -> gym.Env:
        inner.append(KnownEpisodes(gym.make(env_id, max_episode_steps=limit)))
        return inner[0]

    env = make_vec_env(build, n_envs=1, seed=0)
    settings = {**AGREE_SETTINGS, "normalize_advantage": False}
    model = PPO("MlpPolicy", env, policy_kwargs=NETS, seed=0, device="cpu", **settings)
    model.learn(AGREE_SETTINGS["n_steps"] * 8)
    _, callback = model._setup_learn(1_000_000, None)
    inner[0].episode = 0
    model._last_obs, model._last_episode_starts = env.reset(), np.ones(1, bool)
    recorded = Recorded(env)
    buffer = model.rollout_buffer
    with noise_of_actions() as drawn:
        model.collect_rollouts(env, callback, buffer, n_rollout_steps=AGREE_SETTINGS["n_steps"])
    data = {
        **{f"before.{name}": value for name, value in weights(model).items()},
        **dict(optimiser(model)),
        **{name: np.stack([step[name] for step in recorded.steps]) for name in recorded.steps[0]},
        "noise": np.stack(drawn),
        "obs": buffer.observations.copy(),
        "action": buffer.actions.copy(),
        "log_prob": buffer.log_probs.copy(),
        "value": buffer.values.copy(),
        "advantage": buffer.advantages.copy(),
        "returns": buffer.returns.copy(),
    }
    epochs, count = range(AGREE_SETTINGS["n_epochs"]), AGREE_SETTINGS["n_steps"]
    data["order"] = np.stack([np.random.RandomState(epoch).permutation(count) for epoch in epochs])
    waiting = iter(data["order"])
    shuffle, np.random.permutation = np.random.permutation, lambda _: next(waiting)
    model.train()
    np.random.permutation = shuffle
    return data | {f"after.{name}": value for name, value in weights(model).items()}


def replay_weights(model: Any) -> dict[str, np.ndarray]:
    """Every parameter, targets and the entropy coefficient among them."""
    found = weights(model)
    if hasattr(model, "log_ent_coef"):
        found["log_ent_coef"] = model.log_ent_coef.detach().numpy().copy()
    return found


def replay_optimisers(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """The state of every optimiser by parameter."""
    known = {id(value): name for name, value in model.policy.named_parameters()}
    rules = [getattr(part, "optimizer", None) for part in (model.policy, model.actor, model.critic)]
    if hasattr(model, "log_ent_coef"):
        known[id(model.log_ent_coef)] = "log_ent_coef"
        rules.append(model.ent_coef_optimizer)
    for rule in rules:
        for parameter, state in rule.state.items() if rule is not None else ():
            for key, value in state.items():
                yield f"optimiser.{key}.{known[id(parameter)]}", value.numpy().copy()


def replay_fixture(case: str) -> dict[str, np.ndarray]:
    """Trains a little, then records one batch and the update that it makes."""
    algorithm, env_id, limit, settings = FROM_REPLAY[case]
    env = make_vec_env(lambda: gym.make(env_id, max_episode_steps=limit), n_envs=1, seed=0)
    model = algorithm("MlpPolicy", env, seed=0, device="cpu", **REPLAY, **settings)
    for name in ("actor", "critic"):
        if not hasattr(model, name):
            setattr(model, name, None)
    model.learn(121)  # an odd number of updates: the next one of TD3 moves the policy, too
    buffer = model.replay_buffer
    index = np.arange(buffer.pos)[-REPLAY["batch_size"] :]  # some episodes end among them
    batch = buffer._get_samples(index)
    data = {
        **{f"before.{name}": value for name, value in replay_weights(model).items()},
        **dict(replay_optimisers(model)),
        "updates": np.array(model._n_updates),
        "obs": batch.observations.numpy(),
        "action": batch.actions.numpy(),
        "reward": batch.rewards.numpy()[:, 0],
        "terminated": batch.dones.numpy()[:, 0] > 0,
        "truncated": buffer.timeouts[index, 0] > 0,
        "next_obs": batch.next_observations.numpy(),
    }
    buffer.sample = lambda *_, **__: batch
    drawn: list[np.ndarray] = []
    standard_normal = torch.distributions.normal._standard_normal

    def recorded(*args: Any, **kwargs: Any) -> torch.Tensor:
        noise = standard_normal(*args, **kwargs)
        drawn.append(noise.numpy().copy())
        return noise

    torch.distributions.normal._standard_normal = recorded
    torch.manual_seed(0)
    model.train(gradient_steps=1, batch_size=REPLAY["batch_size"])
    torch.distributions.normal._standard_normal = standard_normal
    if case == "td3":
        torch.manual_seed(0)
        drawn = [batch.actions.clone().normal_(0, 1).numpy()]
    data |= {f"noise.{number}": noise for number, noise in enumerate(drawn)}
    return data | {f"after.{name}": value for name, value in replay_weights(model).items()}


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for case in sys.argv[1:] or (*CASES, *AGREE, *FROM_REPLAY):
        make = fixture if case in CASES else agreement if case in AGREE else replay_fixture
        data = make(case)
        np.savez_compressed(FOLDER / f"{case}.npz", **data)
        print(case, "terminated", int(data["terminated"].sum()), "truncated", int(data["truncated"].sum()))


if __name__ == "__main__":
    main()
