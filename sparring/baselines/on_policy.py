"""PPO, A2C and REINFORCE with SB3's constructors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.common.words import Schedule
from sparring.errors import ConfigError
from sparring.model import Model


class PPO(Model):
    """Proximal policy optimisation, with SB3's arguments and defaults."""

    algorithm = "ppo"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 3e-4,
        n_steps: int = 2048,
        batch_size: int = 64,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: Schedule = 0.2,
        clip_range_vf: Schedule | None = None,
        normalize_advantage: bool | str = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Mapping[str, Any] | None = None,
        target_kl: float | None = None,
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
        _no_buffers(rollout_buffer_class, rollout_buffer_kwargs)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "n_steps": n_steps,
                "batch_size": batch_size,
                "n_epochs": n_epochs,
                "gamma": gamma,
                "gae_lambda": gae_lambda,
                "clip_range": clip_range,
                "clip_range_vf": clip_range_vf,
                "normalize_advantage": "minibatch" if normalize_advantage is True else normalize_advantage,
                "ent_coef": ent_coef,
                "vf_coef": vf_coef,
                "max_grad_norm": max_grad_norm,
                "use_sde": use_sde,
                "sde_sample_freq": sde_sample_freq,
                "target_kl": target_kl,
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


class A2C(Model):
    """Synchronous advantage actor-critic, with SB3's arguments and defaults."""

    algorithm = "a2c"
    log_interval = 100

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 7e-4,
        n_steps: int = 5,
        gamma: float = 0.99,
        gae_lambda: float = 1.0,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        rms_prop_eps: float = 1e-5,
        use_rms_prop: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        rollout_buffer_class: Any = None,
        rollout_buffer_kwargs: Mapping[str, Any] | None = None,
        normalize_advantage: bool = False,
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
        _no_buffers(rollout_buffer_class, rollout_buffer_kwargs)
        super().__init__(
            policy,
            env,
            {
                "learning_rate": learning_rate,
                "n_steps": n_steps,
                "gamma": gamma,
                "gae_lambda": gae_lambda,
                "ent_coef": ent_coef,
                "vf_coef": vf_coef,
                "max_grad_norm": max_grad_norm,
                "rms_prop_eps": rms_prop_eps,
                "use_rms_prop": use_rms_prop,
                "use_sde": use_sde,
                "sde_sample_freq": sde_sample_freq,
                "normalize_advantage": normalize_advantage,
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


class REINFORCE(Model):
    """Monte-Carlo policy gradient; SB3 has none, so the arguments follow its A2C."""

    algorithm = "reinforce"

    def __init__(
        self,
        policy: str,
        env: Any,
        learning_rate: Schedule = 1e-3,
        n_steps: int = 128,
        gamma: float = 0.99,
        baseline: bool = True,
        normalize_advantage: bool = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        max_episode_steps: int = 0,
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
                "gamma": gamma,
                "baseline": baseline,
                "normalize_advantage": normalize_advantage,
                "ent_coef": ent_coef,
                "vf_coef": vf_coef,
                "max_grad_norm": max_grad_norm,
                "max_episode_steps": max_episode_steps,
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


def _no_buffers(buffer: Any, kwargs: Any) -> None:
    if buffer is not None or kwargs:
        raise ConfigError(
            "rollout_buffer_class and rollout_buffer_kwargs are not available: a rollout is an array on the "
            "device. Leave them out, or write an algorithm of your own (docs/algorithms.md)."
        )
