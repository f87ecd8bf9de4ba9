"""Attributes that users of SB3 look for on a model and that are somewhere else here."""

from __future__ import annotations

NETWORKS = (
    "networks are arrays, not modules: model.get_parameters() has them by name, model.train_state() as they "
    "are, and model.predict(obs) acts"
)
REPLAY = (
    "the replay is part of the compiled run: its size is model.buffer_size, its kind prioritized, n_steps "
    "and core; save_replay_buffer and load_replay_buffer keep it, and so does a run's checkpoint, with which "
    "`sparring resume RUN` goes on"
)
ROLLOUT = "a rollout lives inside the compiled update; a callback sees its metrics"
PLACES = {
    "replay_buffer": REPLAY,
    "rollout_buffer": ROLLOUT,
    "collect_rollouts": ROLLOUT,
    "train": "model.learn(total_timesteps) collects and updates; no update runs by itself",
    "q_net": NETWORKS,
    "q_net_target": NETWORKS,
    "actor": NETWORKS,
    "actor_target": NETWORKS,
    "critic": NETWORKS,
    "critic_target": NETWORKS,
    "log_ent_coef": "it is model.train_state().log_ent_coef",
    "lr_schedule": "the schedule is model.learning_rate",
    "action_noise": "it became the settings model.noise, model.noise_std and model.noise_mean",
    "exploration_rate": "it does not act by chance; DQN and PQN do",
    "exploration_schedule": "where choices are made by chance model.exploration_rate is its value now",
    "policy_class": "the policy is made of settings: model.config",
    "policy_kwargs": "they became settings: model.config",
}


def place(name: str) -> str:
    """Where to look for it, as the end of a message; empty where nothing is known."""
    return f": {PLACES[name]}." if name in PLACES else ""
