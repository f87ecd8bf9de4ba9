"""A script as one writes it for Stable-Baselines3: only the imports differ."""

from sparring import PPO
from sparring.common.callbacks import CheckpointCallback, EvalCallback
from sparring.common.env_util import make_vec_env
from sparring.common.evaluation import evaluate_policy
from sparring.common.vec_env import VecNormalize

env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, seed=0))
eval_env = make_vec_env("CartPole-v1", n_envs=4, seed=1)

model = PPO(
    "MlpPolicy",
    env,
    n_steps=32,
    batch_size=256,
    n_epochs=20,
    learning_rate=1e-3,
    gae_lambda=0.8,
    gamma=0.98,
    seed=0,
)
callbacks = [
    EvalCallback(eval_env, eval_freq=640, n_eval_episodes=20, best_model_save_path="best"),
    CheckpointCallback(save_freq=1280, save_path="checkpoints"),
]
model.learn(20_000, callback=callbacks)
model.save("ppo_cartpole")

model = PPO.load("ppo_cartpole")
mean, deviation = evaluate_policy(model, eval_env, n_eval_episodes=20)
print(f"mean reward {mean:.1f} +/- {deviation:.1f}")

obs = eval_env.reset()
for _ in range(100):
    action, _ = model.predict(obs, deterministic=True)
    obs, reward, done, info = eval_env.step(action)
