"""SB3's arguments in our words: policies, policy_kwargs and environments become settings and worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sparring.common.gym_space import gym_space
from sparring.errors import ConfigError, nearest

__all__ = ["Given", "config_values", "gym_space", "unwrap"]

POLICIES: dict[str, dict[str, Any]] = {
    "MlpPolicy": {"network": "auto"},
    "CnnPolicy": {"network": "cnn"},
    "MultiInputPolicy": {"network": "auto"},
    "GruPolicy": {"network": "auto", "core": "gru"},
    "LstmPolicy": {"network": "auto", "core": "lstm"},
    "MlpLstmPolicy": {"network": "auto", "core": "lstm"},
    "CnnLstmPolicy": {"network": "cnn", "core": "lstm"},
    "MultiInputLstmPolicy": {"network": "auto", "core": "lstm"},
    "TransformerPolicy": {"network": "auto", "core": "transformer"},
    "S5Policy": {"network": "auto", "core": "s5"},
}
ACTIVATIONS = {
    "relu": "relu",
    "tanh": "tanh",
    "elu": "elu",
    "gelu": "gelu",
    "silu": "silu",
    "swish": "silu",
    "leakyrelu": "leaky_relu",
    "leaky_relu": "leaky_relu",
    "sigmoid": "sigmoid",
    "identity": "identity",
}
EXTRACTORS = {"NatureCNN": "cnn", "FlattenExtractor": "mlp", "CombinedExtractor": "auto"}
OWN_NETWORK = (
    "write the network as a JAX torso in a file and pass network='file.py:Name' to the algorithm (see docs)"
)


BODIES = {
    "dqn": ("net_arch",),
    "pqn": ("net_arch",),
    "gdi": ("net_arch",),
    "sac": ("pi", "qf"),
    "td3": ("pi", "qf"),
    "crossq": ("pi", "qf"),
}
"""Names of an algorithm's hidden layers, where they are not policy and value."""


CORE_WORDS = {"lstm_hidden_size": "core_size", "n_lstm_layers": "core_layers"}
"""sb3-contrib's names for the shape of a core."""


def config_values(
    policy: Any, policy_kwargs: Mapping[str, Any] | None, settings: Mapping[str, Any], algorithm: str = "ppo"
) -> dict[str, Any]:
    """The configuration that SB3's policy, policy_kwargs and settings mean."""
    values = _policy(policy, algorithm)
    optimiser: dict[str, Any] = {}
    for name, value in (policy_kwargs or {}).items():
        if name not in KEYWORDS:
            own = CORE_WORDS.get(name, name if name.startswith("core_") else "")
            hint = f" Give {own}=… to the constructor." if own else nearest(name, KEYWORDS)
            raise ConfigError(f"policy_kwargs has no {name!r} here.{hint}")
        (optimiser if name.startswith("optimizer_") else values).update(KEYWORDS[name](value, algorithm))
    asked, named = dict(settings).get("core"), values.get("core")
    if asked is not None and named is not None and asked != named:
        raise ConfigError(
            f"{policy} has the core {named!r}, and core={asked!r} was given, too. Leave one out."
        )
    return values | dict(settings) | optimiser  # an optimiser in policy_kwargs wins, as in SB3


def _policy(policy: Any, algorithm: str) -> dict[str, Any]:
    if not isinstance(policy, str):
        raise ConfigError(
            f"A policy class ({getattr(policy, '__name__', type(policy).__name__)}) cannot be used, because "
            f"torch modules do not run here. Pass 'MlpPolicy', 'CnnPolicy' or 'MultiInputPolicy', shape it "
            f"with policy_kwargs, or {OWN_NETWORK}."
        )
    if policy not in POLICIES:
        raise ConfigError(
            f"There is no policy {policy!r}.{nearest(policy, POLICIES)} Known: {', '.join(POLICIES)}."
        )
    values = dict(POLICIES[policy])
    if values["network"] == "cnn" and algorithm not in ("sac", "td3", "crossq"):
        # As SB3: nothing between NatureCNN and the heads.
        values |= dict.fromkeys(BODIES.get(algorithm, ("pi", "vf")), ())
    if values["network"] == "cnn" and algorithm == "td3":
        values |= {"pi": (256, 256), "qf": (256, 256)}  # SB3: smaller behind NatureCNN
    return values


# -- policy_kwargs ---------------------------------------------------------------------------------------


def _net_arch(value: Any, algorithm: str) -> dict[str, Any]:
    parts = BODIES.get(algorithm, ("pi", "vf"))
    if isinstance(value, Mapping):
        unknown = set(value) - set(parts)
        if unknown or len(parts) == 1:
            known = "a list of sizes" if len(parts) == 1 else " and ".join(map(repr, parts))
            raise ConfigError(f"net_arch of {algorithm.upper()} is {known}, got {dict(value)!r}.")
        missing = [part for part in parts if part not in value]
        if missing and algorithm in ("sac", "td3", "crossq"):
            raise ConfigError(f"net_arch={dict(value)!r} has no {missing[0]!r}: give sizes for pi and qf.")
        return {part: tuple(value.get(part, ())) for part in parts}
    sizes = list(value)
    if not all(isinstance(size, int) for size in sizes):
        raise ConfigError(
            f"net_arch={value!r}: layers shared by policy and value do not exist any more. Use a list of "
            "sizes, or dict(pi=[…], vf=[…])."
        )
    return {part: tuple(sizes) for part in parts}


def _activation(value: Any, algorithm: str) -> dict[str, Any]:
    name = value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
    if name.lower() not in ACTIVATIONS:
        raise ConfigError(
            f"activation_fn={name} is not available.{nearest(name, ACTIVATIONS)} Known: ReLU, Tanh, ELU, "
            "GELU, SiLU, LeakyReLU, Sigmoid."
        )
    return {"activation": ACTIVATIONS[name.lower()]}


def _optimizer_class(value: Any, algorithm: str) -> dict[str, Any]:
    name = getattr(value, "__name__", str(value))
    if algorithm == "a2c" and name in ("Adam", "RMSprop", "RMSpropTFLike"):
        return {"use_rms_prop": name != "Adam"}
    if algorithm not in ("a2c", "pqn") and name == "Adam":
        return {}
    raise ConfigError(
        f"optimizer_class={name} is not available: A2C uses RMSProp or, with use_rms_prop=False, Adam; PQN "
        "rectified Adam; the others Adam. Leave it out."
    )


def _optimizer_kwargs(value: Any, algorithm: str) -> dict[str, Any]:
    given = {k: v for k, v in dict(value).items() if not (k == "weight_decay" and v == 0)}
    eps = given.pop("eps", None)
    if given:
        raise ConfigError(
            f"optimizer_kwargs: {sorted(given)[0]!r} cannot be set; only eps can. Leave the others out."
        )
    return {} if eps is None else {"rms_prop_eps" if algorithm == "a2c" else "adam_eps": eps}


def _extractor(value: Any, algorithm: str) -> dict[str, Any]:
    name = getattr(value, "__name__", str(value))
    if name not in EXTRACTORS:
        raise ConfigError(
            f"features_extractor_class={name} is a torch module, which does not run here: {OWN_NETWORK}."
        )
    return {"network": EXTRACTORS[name]}


def _extractor_kwargs(value: Any, algorithm: str) -> dict[str, Any]:
    usual = {"features_dim": 512, "normalized_image": False}
    given = {name: x for name, x in dict(value or {}).items() if usual.get(name, ...) != x}
    if given:
        raise ConfigError(
            f"features_extractor_kwargs: {sorted(given)[0]!r} cannot be set; the image network is NatureCNN "
            f"with 512 features. For another one {OWN_NETWORK}."
        )
    return {}


def _only(name: str, wanted: bool, instead: str) -> Callable[[Any, str], dict[str, Any]]:
    """A keyword that exists with one value only."""

    def check(value: Any, algorithm: str) -> dict[str, Any]:
        if value is not wanted:
            raise ConfigError(f"policy_kwargs: {name}={value!r} is not available; {instead}.")
        return {}

    return check


def _named(ours: str) -> Callable[[Any, str], dict[str, Any]]:
    return lambda value, algorithm: {ours: value}


KEYWORDS: dict[str, Callable[[Any, str], dict[str, Any]]] = {
    "net_arch": _net_arch,
    "activation_fn": _activation,
    "ortho_init": _named("ortho_init"),
    "log_std_init": _named("log_std_init"),
    "squash_output": _named("squash"),
    "share_features_extractor": _named("share_features"),
    "optimizer_class": _optimizer_class,
    "optimizer_kwargs": _optimizer_kwargs,
    "features_extractor_class": _extractor,
    "features_extractor_kwargs": _extractor_kwargs,
    "n_critics": _named("n_critics"),
    "full_std": _only("full_std", True, "gSDE always learns one deviation per feature and action"),
    "use_expln": _only("use_expln", False, "deviations are exp of a parameter; leave it out"),
    "normalize_images": _only(
        "normalize_images",
        True,
        "pixels are always divided by 255; scale them in the environment before that",
    ),
}


# -- environments ----------------------------------------------------------------------------------------


class Given(NamedTuple):
    """An environment as the user gave it, taken apart."""

    world: Any
    """what a driver steps: a JaxEnv or a HostEnv; None when there is no environment"""
    rows: int
    config: dict[str, Any]
    """settings that wrappers stand for"""
    venv: Any = None
    """the vector environment, when one was given"""


def unwrap(env: Any, rows: int = 1) -> Given:
    """The world behind whatever a script passes as `env`, and the settings its wrappers stand for."""
    from sparring.envs import registry

    if env is None:
        return Given(None, rows, {})
    _refuse_sb3(env)
    if _comes_from(env, "sparring.common.vec_env"):
        return _unwrap_vec(env)
    world = registry.make(env, n_envs=rows)
    return Given(world, rows if registry.is_jax(world) else world.spec.rows, {})


def _unwrap_vec(env: Any) -> Given:
    from sparring.common.vec_env.base import layers
    from sparring.common.vec_env.host import HostVecEnv
    from sparring.common.vec_env.normalize import VecNormalize
    from sparring.common.vec_env.rows import VecRows

    parts = layers(env)
    markers = [part for part in parts if isinstance(part, VecNormalize)]
    if len(markers) > 1:
        raise ConfigError("The environment is wrapped in VecNormalize twice; once is enough.")
    config = markers[0].settings() if markers else {}
    others = [part for part in parts[:-1] if not isinstance(part, VecNormalize)]
    if not others and isinstance(parts[-1], HostVecEnv):
        return Given(parts[-1].world, env.num_envs, config, env)
    return Given(VecRows(env), env.num_envs, config, env)


def _refuse_sb3(env: Any) -> None:
    if _comes_from(env, "stable_baselines3"):
        raise ConfigError(
            f"{type(env).__name__} belongs to Stable-Baselines3, which runs on torch. Import the same name "
            "from sparring.common.vec_env (or sparring.common.env_util, sparring.common.monitor) instead."
        )


def _comes_from(thing: Any, package: str) -> bool:
    """Whether an object's class or one it inherits from lives there; imports nothing to find out."""
    return any(f"{base.__module__}.".startswith(f"{package}.") for base in type(thing).__mro__)
