"""Algorithms with SB3's constructors: its names, order and defaults, and ours as keywords.

Beside SB3's arguments every constructor takes `run_dir` (None: a folder under runs/, False: none),
`n_envs` (copies of an environment given by its id) and the fields of the algorithm's configuration.
"""

from sparring.baselines.off_policy import DQN, GDI, PQN, SAC, TD3, CrossQ
from sparring.baselines.on_policy import A2C, PPO, REINFORCE

__all__ = ["A2C", "DQN", "GDI", "PPO", "PQN", "REINFORCE", "SAC", "TD3", "CrossQ"]
