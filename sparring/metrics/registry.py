"""The names of all metrics and what each one means; names that SB3 has are SB3's."""

from __future__ import annotations

TIMESTEPS = "time/total_timesteps"

METRICS: dict[str, str] = {
    "rollout/ep_rew_mean": "Mean return of the last `stats_window_size` finished episodes; absent until the "
    "window is full.",
    "rollout/ep_len_mean": "Mean length of the same episodes, in steps.",
    "rollout/episodes": "Episodes finished since training began.",
    "rollout/window_episodes": "Finished episodes in the window so far; at most `stats_window_size`.",
    "rollout/exploration_rate": "Share of random choices (DQN and PQN).",
    "time/fps": "Environment steps per second since training began, compilation excluded.",
    "time/iterations": "Iterations: a collected rollout and the updates that follow it.",
    "time/total_timesteps": "Environment steps, summed over all rows.",
    "time/time_elapsed": "Seconds since training began, over all resumed parts.",
    "time/compile_seconds": "Seconds spent compiling, counted apart from training.",
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
    "eval/mean_reward": "Mean return of the evaluation episodes, acting deterministically.",
    "eval/std_reward": "Standard deviation of the same returns.",
    "eval/mean_ep_length": "Mean length of the same episodes, in steps.",
    "eval/stochastic_mean_reward": "Mean return of evaluation episodes with sampled actions.",
    "eval/stochastic_std_reward": "Standard deviation of the same returns.",
    "eval/stochastic_mean_ep_length": "Mean length of the same episodes, in steps.",
    "eval/dropped": "Snapshots that were not evaluated, because the evaluating process was busy.",
    "eval/restarts": "Times the evaluating process died and was started again.",
    "eval/best_fresh_reward": "Mean return of the best agent on fresh episodes, at the end.",
    "eval/last_fresh_reward": "Mean return of the last agent on the same episodes.",
    "eval/episodes": "Evaluation episodes behind each of these means.",
    "stats/action_saturation": "Share of action entries within 1 % of a bound, in the rollout.",
    "stats/action_top_share": "Share of the option that was chosen most often, in the rollout.",
    "stats/entropy_relative": "Entropy of a policy of choices as a share of the largest possible one.",
    "stats/obs_abs_max": "Largest absolute entry of the rollout's observations.",
    "stats/obs_std_max": "Largest deviation of an observation's entry over the rollout.",
    "stats/obs_std_min": "Smallest deviation of an observation's entry over the rollout.",
    "stats/reward_mean": "Mean reward of the rollout's steps.",
    "stats/reward_nonzero": "Share of the rollout's steps with a reward other than 0.",
    "stats/reward_std": "Deviation of the rollout's rewards.",
    "stats/terminated_share": "Share of ended episodes that terminated; -1 when none ended in the rollout.",
    "async/staleness": "Updates between acting and learning, mean over an iteration's chunks.",
    "async/queue": "Chunks of steps that waited for the learner when it took some.",
    "async/samples_per_insert": "Steps learned from per step collected, since the process began.",
    "async/learner_idle": "Share of an iteration in which the learner waited for actors.",
    "async/actor_idle": "Share of their time in which actors waited for the learner.",
    "async/actors_replaced": "Actors that died or hung and were replaced, since the process began.",
}


def meaning(name: str) -> str:
    """One line about a metric; empty for a name of the user's own."""
    return METRICS.get(name, "")
