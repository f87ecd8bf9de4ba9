"""Deep reinforcement learning with SB3's ease, JAX's speed, and any environment.

Importing this package imports neither jax nor gymnasium; a name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparring.baselines import A2C, DQN, PPO, PQN, REINFORCE, SAC, TD3, CrossQ
    from sparring.common.evaluation import evaluate_policy
    from sparring.envs.registry import make
    from sparring.errors import SparringError
    from sparring.evaluation.run import Run
    from sparring.model import Agent

__version__ = "0.1.0"

__all__ = [
    "A2C",
    "DQN",
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

BASELINES = ("A2C", "CrossQ", "DQN", "PPO", "PQN", "REINFORCE", "SAC", "TD3")
PLACES = {
    **dict.fromkeys(BASELINES, "sparring.baselines"),
    "Agent": "sparring.model",
    "Run": "sparring.evaluation.run",
    "SparringError": "sparring.errors",
    "evaluate_policy": "sparring.common.evaluation",
    "make": "sparring.envs.registry",
}
LATER = ("DDPG", "HerReplayBuffer")


def __getattr__(name: str) -> Any:
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    if name in LATER:  # an AttributeError would lose the sentence in `from sparring import …`
        raise ImportError(f"sparring has no {name} yet. Available: {', '.join(BASELINES)}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
