"""DQN, PQN, GDI, SAC, TD3 and CrossQ with SB3's (for CrossQ sb3-contrib's) constructors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.common import words
from sparring.common.words import Schedule
from sparring.errors import ConfigError
from sparring.model import Model


class DQN(Model):
    """Deep Q-learning, with SB3's arguments and defaults."""

    algorithm = "dqn"
    log_interval = 4
    log_counts = "rollout/episodes"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 1e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 32,
        tau: float = 1.0,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 4,
        gradient_steps: int = 1,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Mapping[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        target_update_interval: int = 10_000,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float | None = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        words.no_buffers(replay_buffer_class, replay_buffer_kwargs, optimize_memory_usage)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "buffer_size": buffer_size,
                "learning_starts": learning_starts,
                "batch_size": batch_size,
                "tau": tau,
                "gamma": gamma,
                "train_freq": train_freq,
                "gradient_steps": gradient_steps,
                "n_steps": n_steps,
                "target_update_interval": target_update_interval,
                "exploration_fraction": exploration_fraction,
                "exploration_initial_eps": exploration_initial_eps,
                "exploration_final_eps": exploration_final_eps,
                "max_grad_norm": max_grad_norm,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )


class SAC(Model):
    """Soft actor-critic, with SB3's arguments and defaults; choices run its discrete form."""

    algorithm = "sac"
    log_interval = 4
    log_counts = "rollout/episodes"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 3e-4,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Mapping[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: Schedule = "auto",
        target_update_interval: int = 1,
        target_entropy: float | str = "auto",
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        words.no_buffers(replay_buffer_class, replay_buffer_kwargs, optimize_memory_usage)
        _no_sde_at_warmup(use_sde_at_warmup)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "buffer_size": buffer_size,
                "learning_starts": learning_starts,
                "batch_size": batch_size,
                "tau": tau,
                "gamma": gamma,
                "train_freq": train_freq,
                "gradient_steps": gradient_steps,
                "n_steps": n_steps,
                "target_update_interval": target_update_interval,
                "use_sde": use_sde,
                "sde_sample_freq": sde_sample_freq,
                "ent_coef": ent_coef,
                "target_entropy": target_entropy,
                "action_noise": action_noise,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )


class TD3(Model):
    """Twin delayed deterministic policy gradient, with SB3's arguments and defaults."""

    algorithm = "td3"
    log_interval = 4
    log_counts = "rollout/episodes"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 1e-3,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        tau: float = 0.005,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Mapping[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        policy_delay: int = 2,
        target_policy_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        words.no_buffers(replay_buffer_class, replay_buffer_kwargs, optimize_memory_usage)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "buffer_size": buffer_size,
                "learning_starts": learning_starts,
                "batch_size": batch_size,
                "tau": tau,
                "gamma": gamma,
                "train_freq": train_freq,
                "gradient_steps": gradient_steps,
                "n_steps": n_steps,
                "policy_delay": policy_delay,
                "target_policy_noise": target_policy_noise,
                "target_noise_clip": target_noise_clip,
                "action_noise": action_noise,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )


class CrossQ(Model):
    """SAC without target networks, with sb3-contrib's arguments and defaults."""

    algorithm = "crossq"
    log_interval = 4
    log_counts = "rollout/episodes"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 1e-3,
        buffer_size: int = 1_000_000,
        learning_starts: int = 100,
        batch_size: int = 256,
        gamma: float = 0.99,
        train_freq: int | tuple[int, str] = 1,
        gradient_steps: int = 1,
        action_noise: Any = None,
        replay_buffer_class: Any = None,
        replay_buffer_kwargs: Mapping[str, Any] | None = None,
        optimize_memory_usage: bool = False,
        n_steps: int = 1,
        ent_coef: Schedule = "auto",
        target_entropy: float | str = "auto",
        policy_delay: int = 3,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        use_sde_at_warmup: bool = False,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        words.no_buffers(replay_buffer_class, replay_buffer_kwargs, optimize_memory_usage)
        _no_sde_at_warmup(use_sde_at_warmup)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "buffer_size": buffer_size,
                "learning_starts": learning_starts,
                "batch_size": batch_size,
                "gamma": gamma,
                "train_freq": train_freq,
                "gradient_steps": gradient_steps,
                "n_steps": n_steps,
                "policy_delay": policy_delay,
                "use_sde": use_sde,
                "sde_sample_freq": sde_sample_freq,
                "ent_coef": ent_coef,
                "target_entropy": target_entropy,
                "action_noise": action_noise,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )


class PQN(Model):
    """Q-learning from fresh rollouts; SB3 has none, so the arguments follow its DQN and PPO."""

    algorithm = "pqn"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 2.5e-4,
        n_steps: int = 32,
        batch_size: int = 128,
        n_epochs: int = 2,
        gamma: float = 0.99,
        q_lambda: float = 0.65,
        exploration_fraction: float = 0.1,
        exploration_initial_eps: float = 1.0,
        exploration_final_eps: float = 0.05,
        max_grad_norm: float | None = 10,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "n_steps": n_steps,
                "batch_size": batch_size,
                "n_epochs": n_epochs,
                "gamma": gamma,
                "q_lambda": q_lambda,
                "exploration_fraction": exploration_fraction,
                "exploration_initial_eps": exploration_initial_eps,
                "exploration_final_eps": exploration_final_eps,
                "max_grad_norm": max_grad_norm,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )


def _no_sde_at_warmup(use_sde_at_warmup: bool) -> None:
    if use_sde_at_warmup:
        raise ConfigError("use_sde_at_warmup is not available: the first actions are uniform. Leave it out.")


class GDI(Model):
    """Two policies, and a bandit that picks each episode's mixture of them; SB3 has none.

    Further settings go by their names in `docs/gdi.md`: variant, shaping, controller, target_temperature …
    """

    algorithm = "gdi"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule | None = None,
        buffer_size: int = 200_000,
        learning_starts: int = 2000,
        batch_size: int = 64,
        gamma: float = 0.99,
        train_freq: int = 40,
        gradient_steps: int = -1,
        max_grad_norm: float | None = 50,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: Any = "auto",
        _init_setup_model: bool = True,
        *,
        run_dir: str | Path | bool | None = None,
        n_envs: int = 1,
        **settings: Any,
    ) -> None:
        given = {} if learning_rate is None else {"learning_rate": learning_rate}
        super().__init__(
            policy,
            env,
            {
                **given,
                "buffer_size": buffer_size,
                "learning_starts": learning_starts,
                "batch_size": batch_size,
                "gamma": gamma,
                "train_freq": train_freq,
                "gradient_steps": gradient_steps,
                "max_grad_norm": max_grad_norm,
                **settings,
            },
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            run_dir=run_dir,
            n_envs=n_envs,
        )
