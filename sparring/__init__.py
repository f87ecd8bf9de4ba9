"""Deep reinforcement learning with SB3's ease, JAX's speed, and any environment.

Importing this package imports neither jax nor gymnasium; a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.baselines import A2C, DQN, GDI, PPO, PQN, REINFORCE, SAC, TD3, CrossQ
    from sparring.common.evaluation import evaluate_policy
    from sparring.envs.registry import make
    from sparring.errors import SparringError
    from sparring.evaluation.run import Run
    from sparring.model import Agent

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "DQN",
    "GDI",
    "PPO",
    "PQN",
    "REINFORCE",
    "SAC",
    "TD3",
    "Agent",
    "CrossQ",
    "Run",
    "SparringError",
    "__version__",
    "evaluate_policy",
    "make",
]

BASELINES = ("A2C", "CrossQ", "DQN", "GDI", "PPO", "PQN", "REINFORCE", "SAC", "TD3")
PLACES = {
    **dict.fromkeys(BASELINES, "sparring.baselines"),
    "Agent": "sparring.model",
    "Run": "sparring.evaluation.run",
    "SparringError": "sparring.errors",
    "evaluate_policy": "sparring.common.evaluation",
    "make": "sparring.envs.registry",
}
INSTEAD = {
    "DDPG": "TD3(policy, env, policy_delay=1, target_policy_noise=0.0, n_critics=1) is the same algorithm",
    "HerReplayBuffer": "there is no hindsight replay yet",
    "MaskablePPO": "PPO, and every algorithm of choices, keeps to an environment's action_masks() by itself",
    "QRDQN": "DQN(policy, env, double=True, dueling=True, prioritized=True, n_steps=3) is the nearest",
    "RecurrentPPO": "PPO('LstmPolicy', env) has a memory; so does every algorithm, also 'GruPolicy', "
    "'S5Policy' and 'TransformerPolicy'",
    "TQC": "CrossQ or SAC are the nearest",
    "TRPO": "PPO(policy, env, target_kl=0.01) is the nearest",
}
"""Names of SB3 and sb3-contrib that are not here, and what to use."""


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    if name in INSTEAD:  # an AttributeError would lose the sentence in `from sparring import …`
        raise ImportError(f"sparring has no {name}: {INSTEAD[name]}. Available: {', '.join(BASELINES)}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
