"""Runs in SB3's own Python, confined: a saved model becomes numbers and JSON, and 1,000 of its decisions.

It imports nothing of sparring. It reads `request.json` in its working directory and writes `export.json` and
`export.safetensors` there; a model that it cannot express is `{"error": why}`.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = 1
ALGORITHMS = {  # module of the policy class, and a setting that only this algorithm has
    "ppo": ("stable_baselines3.common.policies", "clip_range"),
    "a2c": ("stable_baselines3.common.policies", "gae_lambda"),
    "dqn": ("stable_baselines3.dqn.policies", "exploration_fraction"),
    "sac": ("stable_baselines3.sac.policies", "target_entropy"),
    "td3": ("stable_baselines3.td3.policies", "policy_delay"),
}
ACTIVATIONS = {
    "Tanh": "tanh",
    "ReLU": "relu",
    "ELU": "elu",
    "SiLU": "silu",
    "LeakyReLU": "leaky_relu",
    "Sigmoid": "sigmoid",
    "Identity": "identity",
}
SETTINGS = ("gamma", "gae_lambda", "n_steps", "n_epochs", "batch_size", "vf_coef", "max_grad_norm", "tau")


class Unsupported(Exception):
    """A model that has no counterpart; the message says why."""


def main() -> int:
    request = json.loads(Path("request.json").read_text())
    try:
        about, tensors = export(request)
    except Unsupported as error:
        Path("export.json").write_text(json.dumps({"schema": SCHEMA, "error": str(error)}))
        return 0
    Path("export.safetensors").write_bytes(encode(tensors))
    Path("export.json").write_text(json.dumps(about))
    return 0


def export(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the model is, and its arrays by name."""
    try:
        import stable_baselines3
        import torch
    except ImportError as error:
        raise Unsupported(
            f"SB3 does not run in this Python ({error}); name one that has it with --peers-python"
        ) from error
    torch.set_num_threads(1)
    algorithm, settings = identify(request["model"])
    env, why = made(request.get("env"))
    model = load(stable_baselines3, algorithm, request["model"], env)
    check_observation(model.observation_space)
    if env is not None and not alike(env, model):
        env, why = None, "its spaces are not the model's"
    about: dict[str, Any] = {
        "schema": SCHEMA,
        "algorithm": algorithm,
        "versions": {"stable_baselines3": stable_baselines3.__version__, "torch": str(torch.__version__)},
        "observation": space(model.observation_space),
        "action": space(model.action_space),
        "timesteps": int(getattr(model, "num_timesteps", 0)),
        "settings": settings,
        "squash": bool(model.policy.squash_output),
        "use_sde": bool(getattr(model, "use_sde", False)),
        "sde_sample_freq": int(getattr(model, "sde_sample_freq", -1)),
        "exploration_rate": float(getattr(model, "exploration_rate", 0.0)),
        "normalised": None,
    }
    layers, tensors = network(algorithm, model)
    about["activation"], about["pi"] = body(layers, tensors)
    statistics = None
    if request.get("vecnormalize"):
        statistics = read_statistics(request["vecnormalize"], model.observation_space)
    if statistics is not None:
        tensors |= {"obs.mean": statistics.obs_rms.mean, "obs.var": statistics.obs_rms.var}
        about["normalised"] = {
            "clip": float(statistics.clip_obs),
            "epsilon": float(statistics.epsilon),
            "count": float(statistics.obs_rms.count),
        }
    steps = int(request["steps"])
    if env is None:
        record = drawn(algorithm, model, statistics, steps)
    else:
        record = played(algorithm, model, statistics, request["env"], request["seeds"], steps)
    about["record"] = {"played": env is not None, "why": why}
    tensors |= {f"record.{name}": value for name, value in record.items()}
    wide = {"obs.mean", "obs.var"}  # statistics are kept as they are, in float64
    return about, {name: value if name in wide else narrow(value) for name, value in tensors.items()}


# -- reading -------------------------------------------------------------------------------------------------


def identify(path: str) -> tuple[str, dict[str, float]]:
    """The algorithm that a file was saved by, and its plain settings; reads JSON only."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise Unsupported(f"it is not a model that Stable-Baselines3 saved ({error})") from error
    policy = data.get("policy_class", {})
    module = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
    plain = {k: data[k] for k in SETTINGS if type(data.get(k)) in (int, float)}
    for name, (home, own) in ALGORITHMS.items():
        if module == home and own in data:
            return name, plain
    raise Unsupported(
        f"its policy is of {module or 'an unknown module'}; PPO, A2C, DQN, SAC and TD3 of SB3 itself can be "
        "imported, with its own policy classes"
    )


def made(env_id: str | None) -> tuple[Any, str]:
    """The environment, or None and why there is none."""
    if env_id is None:
        return None, "the environment is not one of Gymnasium's"
    import gymnasium

    try:
        return gymnasium.make(env_id), ""
    except Exception as error:  # noqa: BLE001  (whatever an environment raises: the check is then done without)
        return None, f"SB3's Python cannot make {env_id}: {type(error).__name__}: {str(error)[:200]}"


def alike(env: Any, model: Any) -> bool:
    """Whether a model can act in an environment; bounds are compared by whoever reads the export."""
    pairs = ((env.observation_space, model.observation_space), (env.action_space, model.action_space))
    return all(type(a) is type(b) and a.shape == b.shape for a, b in pairs)


def load(package: Any, algorithm: str, path: str, env: Any) -> Any:
    """The model, without what only training needs; spaces that cannot be read are the environment's."""
    cls = getattr(package, algorithm.upper())
    unused: dict[str, Any] = {
        "learning_rate": 0.0,
        "lr_schedule": lambda _: 0.0,
        "clip_range": lambda _: 0.0,
        "clip_range_vf": None,
        "exploration_schedule": lambda _: 0.0,
        "_last_obs": None,
        "_last_original_obs": None,
        "_last_episode_starts": None,
        "ep_info_buffer": None,
        "ep_success_buffer": None,
        "replay_buffer_class": None,
        "replay_buffer_kwargs": {},
    }
    more = {} if algorithm in ("ppo", "a2c") else {"buffer_size": 1, "optimize_memory_usage": False}
    try:
        return cls.load(path, device="cpu", custom_objects=unused, **more)
    except Exception as error:
        if env is None:
            raise Unsupported(f"SB3 cannot load it: {type(error).__name__}: {str(error)[:300]}") from error
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    try:
        return cls.load(path, device="cpu", custom_objects={**unused, **spaces}, **more)
    except Exception as error:
        raise Unsupported(f"SB3 cannot load it: {type(error).__name__}: {str(error)[:300]}") from error


def read_statistics(path: str, observation: Any) -> Any:
    """VecNormalize's statistics, or None where they do not touch observations."""
    import pickle

    with open(path, "rb") as file:
        found = pickle.load(file)  # noqa: S301  (confined: nothing that it does matters)
    if type(found).__name__ != "VecNormalize":
        raise Unsupported(f"{path} holds a {type(found).__name__}, not a VecNormalize")
    if not found.norm_obs:
        return None
    if observation.dtype == np.uint8:
        raise Unsupported("VecNormalize on bytes has no counterpart here")
    if getattr(found.obs_rms, "mean", None) is None or found.obs_rms.mean.shape != observation.shape:
        raise Unsupported("its VecNormalize was made for other observations")
    found.training = False
    return found


# -- taking apart --------------------------------------------------------------------------------------------


def check_observation(observation: Any) -> None:
    """Refuses observations that a plain MLP policy does not have."""
    kind = type(observation).__name__
    if kind not in ("Box", "Discrete", "MultiDiscrete", "MultiBinary") or len(observation.shape) > 2:
        raise Unsupported(f"it observes {observation}; only MLP policies on vectors and choices are imported")


def space(found: Any) -> dict[str, Any]:
    """A space as JSON."""
    start = np.asarray(getattr(found, "start", 0))
    if start.any():
        raise Unsupported(f"{found} does not start at 0")
    match type(found).__name__:
        case "Discrete":
            return {"type": "Discrete", "n": int(found.n)}
        case "MultiDiscrete" if found.nvec.ndim == 1:
            return {"type": "MultiDiscrete", "sizes": found.nvec.tolist()}
        case "MultiBinary" if isinstance(found.n, (int, np.integer)):
            return {"type": "MultiBinary", "n": int(found.n)}
        case "Box":
            low, high = (
                [x if np.isfinite(x) else str(x) for x in np.asarray(b, np.float64).ravel().tolist()]
                for b in (found.low, found.high)
            )
            dtype = "uint8" if found.dtype == np.uint8 else "float32"
            return {"type": "Box", "shape": list(found.shape), "low": low, "high": high, "dtype": dtype}
    raise Unsupported(f"{found} has no counterpart here")


def network(algorithm: str, model: Any) -> tuple[list[Any], dict[str, Any]]:
    """The layers of the policy's body, and the tensors of its head."""
    import torch

    policy = model.policy
    actor = {"dqn": "q_net", "sac": "actor", "td3": "actor"}.get(algorithm)
    part = policy if actor is None else getattr(policy, actor)
    for thing in (policy, part):
        if not type(thing).__module__.startswith("stable_baselines3."):
            raise Unsupported(f"its policy is a {type(thing).__name__} of its own")
    if type(part.features_extractor).__name__ != "FlattenExtractor":
        raise Unsupported(f"it looks through a {type(part.features_extractor).__name__}, not an MLP policy")
    tensors: dict[str, Any] = {}
    if algorithm in ("ppo", "a2c"):
        if policy.squash_output:
            raise Unsupported("squash_output of an actor-critic has no exact counterpart here")
        if model.use_sde and (policy.action_dist.use_expln or not policy.action_dist.full_std):
            raise Unsupported("gSDE with use_expln, or without full_std, has no counterpart here")
        layers, head = list(policy.mlp_extractor.policy_net), policy.action_net
        if getattr(policy, "log_std", None) is not None:
            tensors["log_std"] = policy.log_std
    elif algorithm == "sac":
        if model.use_sde:
            raise Unsupported("SAC with gSDE clips the mean of its actions, which has no counterpart here")
        layers, head = list(part.latent_pi), part.mu
        tensors |= {"log_std.weight": part.log_std.weight, "log_std.bias": part.log_std.bias}
    else:
        layers = list(part.q_net if algorithm == "dqn" else part.mu)
        if algorithm == "td3" and type(layers.pop()) is not torch.nn.Tanh:
            raise Unsupported("its actor does not end in tanh")
        head = layers.pop()
    if type(head) is not torch.nn.Linear:
        raise Unsupported(f"its last layer is a {type(head).__name__}")
    return layers, {**tensors, "head.weight": head.weight, "head.bias": head.bias}


def body(layers: list[Any], tensors: dict[str, Any]) -> tuple[str, list[int]]:
    """Activation and sizes of dense layers with one activation behind each; fills in their tensors."""
    import torch

    dense, functions = layers[::2], layers[1::2]
    if len(dense) != len(functions) or any(type(layer) is not torch.nn.Linear for layer in dense):
        raise Unsupported(
            f"its body is not dense layers with activations: {[type(x).__name__ for x in layers]}"
        )
    kinds = {type(function) for function in functions}
    name = kinds.pop().__name__ if kinds else "Identity"
    if kinds or name not in ACTIVATIONS or any(not usual(function) for function in functions):
        raise Unsupported(f"its activation {name} has no exact counterpart; known: {', '.join(ACTIVATIONS)}")
    for index, layer in enumerate(dense):
        tensors |= {f"body.{index}.weight": layer.weight, f"body.{index}.bias": layer.bias}
    return ACTIVATIONS[name], [int(layer.out_features) for layer in dense]


def usual(function: Any) -> bool:
    """Whether an activation has torch's default shape."""
    own = type(function).__module__.startswith("torch.nn.")
    return (
        own and getattr(function, "alpha", 1.0) == 1.0 and getattr(function, "negative_slope", 0.01) == 0.01
    )


# -- decisions -----------------------------------------------------------------------------------------------


def played(
    algorithm: str, model: Any, statistics: Any, env_id: str, seeds: list[int], steps: int
) -> dict[str, np.ndarray]:
    """Steps of the deterministic policy; episode i starts from seed i, in an environment of its own."""
    import gymnasium

    rows: list[tuple[Any, ...]] = []
    for seed in seeds:
        env = gymnasium.make(env_id)
        obs, _ = env.reset(seed=int(seed))
        over = False
        while not over and len(rows) < steps:
            action, params = decide(algorithm, model, statistics, obs)
            after, reward, terminated, truncated, _ = env.step(action)
            truncated = truncated and not terminated
            rows.append((obs, action, params, reward, terminated, truncated))
            obs, over = after, terminated or truncated
        env.close()
        if len(rows) >= steps:
            break
    names = ("obs", "action", "params", "reward", "terminated", "truncated")
    return {name: np.stack([np.asarray(x) for x in part]) for name, part in zip(names, zip(*rows))}  # noqa: B905


def drawn(algorithm: str, model: Any, statistics: Any, steps: int) -> dict[str, np.ndarray]:
    """Decisions on observations drawn from the model's own space."""
    model.observation_space.seed(0)
    observations = [model.observation_space.sample() for _ in range(steps)]
    made = [decide(algorithm, model, statistics, obs) for obs in observations]
    return {
        "obs": np.stack([np.asarray(obs) for obs in observations]),
        "action": np.stack([np.asarray(action) for action, _ in made]),
        "params": np.stack([params for _, params in made]),
    }


def decide(algorithm: str, model: Any, statistics: Any, obs: Any) -> tuple[Any, np.ndarray]:
    """The deterministic action, and the parameters of the distribution that a stochastic one comes from."""
    import torch

    shown = obs if statistics is None else statistics.normalize_obs(obs)
    action, _ = model.predict(shown, deterministic=True)
    tensor, _ = model.policy.obs_to_tensor(np.asarray(shown))
    with torch.no_grad():
        if algorithm == "dqn":
            found = [model.q_net(tensor)]
        elif algorithm == "td3":
            found = [model.actor(tensor)]
        elif algorithm == "sac":
            found = list(model.actor.get_action_dist_params(tensor)[:2])
        else:
            found = distribution(model.policy.get_distribution(tensor).distribution)
    return action, torch.cat([x.reshape(-1) for x in found]).numpy().copy()


def distribution(found: Any) -> list[Any]:
    """Normalised logits, or mean and log deviation."""
    if isinstance(found, (list, tuple)):
        return [part.logits for part in found]
    return [found.logits] if hasattr(found, "logits") else [found.mean, found.stddev.log()]


# -- writing -------------------------------------------------------------------------------------------------


def narrow(value: Any) -> np.ndarray:
    """An array of float32, int32 or bool."""
    array = np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    return array if array.dtype == bool else array.astype(np.int32)


def encode(tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file."""
    codes = {"float32": "F32", "float64": "F64", "int32": "I32", "bool": "BOOL"}
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    offset = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        array = np.ascontiguousarray(tensors[name])
        parts.append(array.tobytes())
        end = offset + len(parts[-1])
        header[name] = {
            "dtype": codes[array.dtype.name],
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


if __name__ == "__main__":
    sys.exit(main())
