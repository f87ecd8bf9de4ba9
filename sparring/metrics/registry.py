"""The names of all metrics and what each one means; names that SB3 has are SB3's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

TIMESTEPS = "time/total_timesteps"

METRICS: dict[str, str] = {
    "rollout/ep_rew_mean": "Mean return of the last `stats_window_size` finished episodes; absent until the "
    "first has finished.",
    "rollout/ep_len_mean": "Mean length of the same episodes, in steps.",
    "rollout/ep_returns_<q>": "How the returns of the same episodes are spread: `<q>` is min, p5, p50, p95 "
    "or max, here and below; measured about 200 times in a run.",
    "rollout/shaped_rew_mean_1": "Mean of the same returns as head 1 is rewarded; `_2` for head 2 (GDI).",
    "rollout/episodes": "Episodes finished since training began.",
    "rollout/window_episodes": "Finished episodes in the window so far; at most `stats_window_size`.",
    "rollout/exploration_rate": "Share of random choices (DQN and PQN).",
    "time/fps": "Environment steps per second since training began, compilation excluded.",
    "time/iterations": "Iterations: a collected rollout and the updates that follow it.",
    "time/total_timesteps": "Environment steps, summed over all rows.",
    "time/time_elapsed": "Seconds since training began, over all resumed parts.",
    "time/compile_seconds": "Seconds spent compiling what trains; not what evaluates or saves.",
    "time/split_seconds": "Wall time since the last such record in seconds; the shares below are of it.",
    "time/env": "Share of the time that the environment took (host driver).",
    "time/act": "Share of the time from observations to actions, small copies included (host driver).",
    "time/update": "Share of the time spent learning (host driver).",
    "time/fused": "Share of the time in the program that steps, acts and learns (fused driver).",
    "time/transfer": "Share of the time spent copying: rollouts and replayed batches, metrics back.",
    "time/compile": "Share of the time spent compiling.",
    "time/evaluation": "Share of the time that training waited for evaluations.",
    "time/checkpoint": "Share of the time that training waited for checkpoints.",
    "time/other": "Share of the time that went elsewhere: callbacks, displays, bookkeeping.",
    "time/device_idle": "Share of the time in which the device neither acted nor learned.",
    "train/actor_grad_norm": "Norm of the actor's gradient.",
    "train/actor_loss": "Loss of the actor.",
    "train/approx_kl": "Approximate KL divergence of the updated policy from the one that acted.",
    "train/clip_fraction": "Share of samples whose probability ratio was clipped.",
    "train/clip_range": "Current clip range of the policy ratio.",
    "train/clip_range_vf": "Current clip range of the value function.",
    "train/critic_grad_norm": "Norm of the critics' gradient.",
    "train/critic_loss": "Loss of the critics, summed over them.",
    "train/ent_coef": "Weight of the entropy.",
    "train/ent_coef_loss": "Loss of a learned weight of the entropy.",
    "train/entropy": "Entropy of the policy, estimated from its log-probabilities.",
    "train/entropy_loss": "Minus the mean entropy of the policy.",
    "train/explained_variance": "1 - Var(return - value) / Var(return): 1 is a perfect critic, 0 a constant.",
    "train/grad_norm": "Norm of the gradient before clipping.",
    "train/learning_rate": "Current learning rate.",
    "train/loss": "Total loss of the last update.",
    "train/n_updates": "Gradient steps since training began, in SB3's counting (epochs).",
    "train/policy_gradient_loss": "Mean policy loss of the last update.",
    "train/policy_loss": "Mean policy loss of the last update (A2C and REINFORCE).",
    "train/q_mean": "Mean value of the actions in the batch.",
    "train/std": "Mean standard deviation of a continuous policy.",
    "train/td_error": "Mean distance of values from their targets.",
    "train/value_loss": "Mean value loss of the last update.",
    "train/value_loss_root": "Square root of the value loss: the typical error in units of the value.",
    "train/critic_loss_root": "Square root of the critics' loss, likewise.",
    "train/v_loss_1_root": "Square root of head 1's value loss, likewise; `_2` and so on (GDI).",
    "train/q_loss_1_root": "Square root of head 1's action-value loss, likewise.",
    "train/v_loss_1": "Value loss of head 1; `_2` and so on for the others (GDI).",
    "train/q_loss_1": "Action-value loss of head 1, likewise.",
    "train/pi_loss_1": "Policy loss of head 1, likewise.",
    "train/entropy_1": "Entropy of head 1's target policy, likewise.",
    "train/advantage_std_1": "Deviation of head 1's advantages of what was done, likewise.",
    "train/value_1": "Mean value by head 1, likewise.",
    "train/explained_variance_1": "Explained variance of head 1's values, likewise.",
    "train/ratio_clipped": "Share of steps whose ratio of target policy to behaviour was clipped (GDI).",
    "train/behaviour_kl": "Estimated divergence of the target policies from the behaviour that acted (GDI).",
    "train/value_drift": "Mean distance of V now from V when the action was chosen (GDI with record_heads).",
    "train/ratio_one": "Share of steps at which a target policy is the behaviour; near 1 nothing is steered.",
    "bandit/entropy": "Evenness of the selector's choice in its narrowest coordinate: 0 one cell, 1 uniform.",
    "bandit/undecided": "Likewise, but for what is spread in any case (floor, chance): 0 all on one cell.",
    "bandit/snr": "There: standard errors between the best and the worst cell; below 2 it may be noise.",
    "bandit/pool_mean": "Mean of the recent returns that the selector ranks against.",
    "bandit/pool_std": "Deviation of the same returns.",
    "bandit/effective_pulls": "Episodes that the selector still remembers, older ones counting less.",
    "bandit/entropy/<name>": "Evenness of the choice in one coordinate.",
    "bandit/undecided/<name>": "The same but for what is spread in any case.",
    "bandit/signal/<name>": "Standard errors between the best and the worst cell of one coordinate.",
    "bandit/probability/<name>/00": "Probability with which a cell of a coordinate is chosen.",
    "bandit/mean/<name>/00": "What the selector believes a cell is worth, in its own units.",
    "bandit/return/<name>/00": "Mean return of the episodes played in a cell, older ones counting less.",
    "eval/mean_reward": "Mean return of the evaluation episodes, acting deterministically.",
    "eval/std_reward": "Standard deviation of the same returns.",
    "eval/mean_ep_length": "Mean length of the same episodes, in steps.",
    "eval/stochastic_mean_reward": "Mean return of evaluation episodes with sampled actions.",
    "eval/stochastic_std_reward": "Standard deviation of the same returns.",
    "eval/stochastic_mean_ep_length": "Mean length of the same episodes, in steps.",
    "eval/shaped_mean_reward_1": "Mean return of the deterministic episodes as head 1 is rewarded (GDI).",
    "eval/head_1_mean_reward": "Mean return of episodes played greedily by head 1 alone (GDI).",
    "eval/bandit_mean_reward": "Mean return of episodes at the behaviours that the controller has chosen.",
    "eval/dropped": "Snapshots that were not evaluated, because the evaluating process was busy.",
    "eval/restarts": "Times the evaluating process died and was started again.",
    "eval/best_fresh_reward": "Mean return of the best agent on fresh episodes, at the end.",
    "eval/last_fresh_reward": "Mean return of the last agent on the same episodes.",
    "eval/episodes": "Evaluation episodes behind each of these means.",
    "env/<name>_sum": "Sum over an episode of a number in the environment's infos; mean of the episodes that "
    "ended in the rollout, or the last such mean.",
    "env/<name>_mean": "Mean of the same number over the steps of an episode that had it.",
    "env/<name>_last": "The same number in the last step of an episode that had it.",
    "stats/action_saturation": "Share of action entries within 1 % of a bound, in the rollout. This and all "
    "that is said of a rollout below is said of a replayed batch, about 200 times in a run, where rollouts "
    "have fewer than 32 steps.",
    "stats/action_share_<i>": "Share of option `<i>` among those chosen in the rollout, 18 options at most; "
    "measured about 200 times in a run.",
    "stats/action_top_share": "Share of the option that was chosen most often, in the rollout.",
    "stats/advantage_bias": "Absolute mean of the advantages over their deviation, before standardisation.",
    "stats/advantage_max": "Largest absolute advantage before standardisation, in the critic's scale.",
    "stats/advantages_<q>": "How the advantages are spread before standardisation, in the critic's scale; "
    "measured about 200 times in a run.",
    "stats/dead_units": "Share of hidden units that are never active or, with tanh and sigmoid, always "
    "saturated; measured about 200 times in a run.",
    "stats/entropy_relative": "Entropy of a policy of choices as a share of the largest possible one.",
    "stats/feature_rank": "Singular values of the last hidden layer above 1 % of the largest, as a share of "
    "all; measured about 200 times in a run, on a CPU.",
    "stats/logits_<q>": "How the logits of a policy of choices are spread around their mean, over a few of "
    "the rollout's observations; measured about 200 times in a run.",
    "stats/obs_<i>_max": "Largest value of entry `<i>` of the rollout's raw observations, which are flat and "
    "have at most 32 entries; measured about 200 times in a run.",
    "stats/obs_<i>_mean": "Mean of the same entry.",
    "stats/obs_<i>_min": "Smallest value of the same entry.",
    "stats/obs_<i>_std": "Deviation of the same entry.",
    "stats/obs_abs_max": "Largest absolute entry of the rollout's observations, as the network sees them.",
    "stats/obs_clipped": "Share of normalised observation entries at the bound `clip_obs`.",
    "stats/obs_std_max": "Largest deviation of an observation's entry over the rollout, as the network sees "
    "it.",
    "stats/obs_std_min": "Smallest deviation of an observation's entry over the rollout, as the network sees "
    "it; not of bytes.",
    "stats/param_norm": "Norm of all parameters after the update; measured about 200 times in a run.",
    "stats/priority_ess": "Effective share of a prioritised replay, (Σp)² / (N Σp²), from the batch.",
    "stats/q_abs_max": "Largest absolute value of the actions in the batch.",
    "stats/q_disagreement": "Mean distance of the first two critics over the deviation of their mean.",
    "stats/replay_reward_max": "Largest absolute reward in the batch, in the critic's scale.",
    "stats/replay_reward_nonzero": "Share of replayed steps with a reward other than 0.",
    "stats/replay_terminated": "Share of replayed steps that terminated.",
    "stats/return_std": "Deviation of the discounted return, by which normalised rewards are divided.",
    "stats/reward_mean": "Mean reward of the rollout's steps.",
    "stats/reward_nonzero": "Share of the rollout's steps with a reward other than 0.",
    "stats/reward_std": "Deviation of the rollout's rewards.",
    "stats/rewards_<q>": "How the rollout's rewards are spread; measured about 200 times in a run.",
    "stats/terminated_share": "Share of ended episodes that terminated; -1 when none ended in the rollout.",
    "stats/update_size": "‖Δθ‖ / ‖θ‖ of the iteration's update, or of its last one where it has several; "
    "measured about 200 times in a run.",
    "stats/value_target_max": "Largest absolute value target, in the critic's scale.",
    "stats/value_targets_<q>": "How the value targets are spread, in the critic's scale; measured about 200 "
    "times in a run.",
    "replay/filled": "Share of the replay that is filled.",
    "async/staleness": "Updates between acting and learning, mean over an iteration's chunks.",
    "async/queue": "Chunks of steps that waited for the learner when it took some.",
    "async/samples_per_insert": "Steps learned from per step collected, since the process began.",
    "async/learner_idle": "Share of an iteration in which the learner waited for actors.",
    "async/actor_idle": "Share of their time in which actors waited for the learner.",
    "async/actors_replaced": "Actors that died or hung and were replaced, since the process began.",
}

EPISODIC = ("rollout/ep_", "rollout/shaped_")
"""How metrics of finished episodes begin; they are absent before the first."""
MOST_SHARES = 18
"""Options whose shares are told one by one, at most."""
MOST_ENTRIES = 32
"""Entries of an observation that are told one by one, at most."""
SPREAD = ("min", "p5", "p50", "p95", "max")
"""How the names of numbers end that tell how something is spread."""
OF_BATCH = frozenset(
    {
        "stats/action_saturation",
        "stats/action_top_share",
        "stats/obs_abs_max",
        "stats/obs_clipped",
        "stats/obs_std_max",
        "stats/obs_std_min",
        "stats/reward_mean",
        "stats/reward_nonzero",
        "stats/reward_std",
        "stats/terminated_share",
    }
).union(
    (f"stats/rewards_{what}" for what in SPREAD),
    (f"stats/obs_{i}_{what}" for i in range(MOST_ENTRIES) for what in ("min", "mean", "max", "std")),
    (f"stats/action_share_{i}" for i in range(MOST_SHARES)),
)
"""What is said of a rollout or, where rollouts are short, of a sampled batch."""
LOOKED_AT = OF_BATCH | {"stats/update_size", "stats/param_norm", "stats/dead_units", "stats/feature_rank"}
"""What looks inside an update find: at networks or, where rollouts are short, at a sampled batch."""
SPREADS = ("rollout/ep_returns", "stats/advantages", "stats/logits", "stats/value_targets")
UNCLIPPED = frozenset({"train/actor_grad_norm", "train/critic_grad_norm"})
"""Norms that are taken for those who look alone, in the iterations of a run that are kept."""
SPARSE = LOOKED_AT.union((f"{name}_{what}" for name in SPREADS for what in SPREAD), UNCLIPPED)
"""Metrics that are NaN in an iteration in which nobody looked."""
OF_UPDATES = LOOKED_AT | {
    "stats/priority_ess",
    "stats/q_abs_max",
    "stats/q_disagreement",
    "stats/replay_reward_max",
    "stats/replay_reward_nonzero",
    "stats/replay_terminated",
    "stats/value_target_max",
}
"""Metrics of updates that are not in `train/`: they mean nothing before the first."""


SQUARED = re.compile(r"train/(value_loss|critic_loss|[vq]_loss_[0-9]+)")
"""Losses that are mean squares: their roots are in units of the value."""


def roots(values: Mapping[str, float]) -> dict[str, float]:
    """The roots of the losses that are squares."""
    return {f"{n}_root": math.sqrt(x) for n, x in values.items() if x >= 0.0 and SQUARED.fullmatch(n)}


def meaning(name: str) -> str:
    """One line about a metric; empty for a name of the user's own."""
    if name.startswith("env/"):
        return METRICS.get(f"env/<name>_{name.rpartition('_')[2]}", "")
    start, _, end = name.rpartition("_")
    ways = (name, f"{start}_<q>" if end in SPREAD else "", re.sub(r"_[0-9]+", "_<i>", name))
    return next((METRICS[way] for way in ways if way in METRICS), "")
