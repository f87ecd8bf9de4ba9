"""`check-env`: what is right and wrong with an environment, and how to mend it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from sparring.envs import masks, references, registry
from sparring.envs.gym_spaces import action_splitter
from sparring.errors import EnvironmentFailure, SparringError
from sparring.spaces import Box, Dict, EnvSpec, Space, describe, dtype_of, event_shape, legal_size

Level = Literal["ok", "advice", "warning", "error"]

STEPS = 400
LARGE = 10.0
"""Observations beyond this are worth normalising."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Level
    what: str
    why: str = ""
    fix: str = ""


def check(
    env: Any, *, kwargs: Mapping[str, Any] | None = None, n_envs: int = 8, seed: int = 0
) -> list[Finding]:
    """Looks at an id, `file.py:name` or environment object; errors come first."""
    order: list[Level] = ["error", "warning", "advice", "ok"]
    findings: list[Finding] = []
    try:
        for finding in _check(env, dict(kwargs or {}), n_envs, seed):
            findings.append(finding)
    except Exception as error:  # noqa: BLE001  (whatever a stranger's environment leads to is a finding)
        what = f"{type(error).__name__}: {error}"
        findings.append(Finding("error", "the check had to stop", what, "mend this, then check again"))
    return sorted(findings, key=lambda finding: order.index(finding.level))


def _check(env: Any, kwargs: dict[str, Any], n_envs: int, seed: int) -> Iterator[Finding]:
    from sparring.envs.source import legacy_gym

    if (legacy := legacy_gym()) is not None:
        yield Finding("advice", "legacy gym is installed", legacy, "pip uninstall gym")
    try:
        made = registry.make(env, kwargs=kwargs, backend="inline", n_envs=1)
    except SparringError as error:
        yield Finding("error", "the environment could not be made", str(error), "see the reason")
        return
    if registry.is_jax(made):
        yield from _check_jax(made, seed)
    elif type(made).__name__ == "GymRows":
        yield from _check_gym(made, n_envs, seed)
    else:
        yield from _check_host(made, seed)


# -- Gymnasium environments ----------------------------------------------------------------------------------


class Trajectory(NamedTuple):
    """A run of one environment: everything that was returned, as it was returned."""

    observations: list[Any]
    rewards: list[Any]
    terminated: list[Any]
    truncated: list[Any]
    masks: list[Any]
    """of every state that was acted in; empty where the environment says nothing"""


def _check_gym(rows: Any, n_envs: int, seed: int) -> Iterator[Finding]:
    source: Callable[[], Any] = rows.sources[0]
    env = rows.envs[0]
    given = source() is env
    spec: EnvSpec = rows.spec
    yield Finding("ok", f"observation {describe(spec.observation)}, action {describe(spec.action)}")
    try:
        actions = _actions(env, STEPS, seed)
        first = _run(env, actions, seed, spec)
    except SparringError as error:
        yield Finding(
            "error", "the API is not Gymnasium's", str(error), "return what gymnasium.Env documents"
        )
        return
    except Exception as error:  # noqa: BLE001  (whatever a stranger's environment raises is a finding)
        yield Finding("error", "the environment raised", f"{type(error).__name__}: {error}", "mend it")
        return
    yield from _check_values(env, first)
    yield from _check_masks(env, spec, first)
    yield from _check_references(rows, seed)
    yield from _check_ends(spec, first)
    other = env if given else source()
    try:
        rebuilt = None if given else rows.fresh_every_episode
        yield from _check_seeding(env, other, first, actions, seed, spec, rebuilt)
    finally:
        if other is not env:
            other.close()
    yield from _check_ranges(spec, first)
    try:
        yield from _check_cost(rows, n_envs, given)
    except EnvironmentFailure as error:
        if not first.masks or spec.masks_actions:
            raise
        yield Finding(
            "error",
            "it fails when the mask in info is not kept to, and training does not read it",
            str(error),
            "give it or a wrapper a method action_masks() that returns the mask",
        )
    if not given:
        rows.close()


def _actions(env: Any, count: int, seed: int) -> list[Any]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(count)]


def _run(env: Any, actions: list[Any], seed: int, spec: EnvSpec) -> Trajectory:
    """Steps through episodes with seeds `seed`, `seed + 1`, …; raises when the API is not Gymnasium's.

    Where there is a mask its legal actions are drawn instead of those given, the same for the same masks.
    """
    generator, split = np.random.default_rng(0), action_splitter(env.action_space)
    obs, info = _first(env, seed)
    run = Trajectory([obs], [], [], [], [])
    episode, elapsed = 0, 0
    for given in actions:
        action, mask = given, _mask(env, info)
        if mask is not None:
            run.masks.append(mask)
            if masks.fault(spec.action, mask) is None:
                legal = mask.reshape(1, -1).astype(bool)
                action = split(masks.choose(spec.action, generator, (1,), legal))[0]
        result = env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            count = len(result) if isinstance(result, tuple) else 1
            raise EnvironmentFailure(
                f"step returned {count} values, not (observation, reward, terminated, truncated, info)"
                + ("; four is the legacy gym API" if count == 4 else "")
            )
        obs, reward, terminated, truncated, info = result
        elapsed += 1
        cut = spec.time_limit is not None and elapsed >= spec.time_limit
        run.observations.append(_kept(obs))
        run.rewards.append(reward)
        run.terminated.append(terminated)
        run.truncated.append(truncated or cut)
        if terminated or truncated or cut:
            episode, elapsed = episode + 1, 0
            info = _first(env, seed + episode)[1]
    return run


def _first(env: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    try:
        result = env.reset(seed=seed)
    except TypeError as error:
        raise EnvironmentFailure(f"reset takes no seed ({error})") from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise EnvironmentFailure("reset returned only an observation, not (observation, info)")
    return _kept(result[0]), result[1]


def _mask(env: Any, info: Any) -> Any:
    """What the environment says is legal now, as an array of its own; None where it says nothing."""
    method = masks.mask_method(env)
    if callable(method):
        return np.array(method())
    told = info.get(masks.INFO) if isinstance(info, dict) else None
    return None if told is None else np.array(told)


def _kept(obs: Any) -> Any:
    """A copy, because an environment may write into the array it returned."""
    if isinstance(obs, dict):
        return {name: _kept(part) for name, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_kept(part) for part in obs)
    return np.array(obs)


def _check_values(env: Any, run: Trajectory) -> Iterator[Finding]:
    space = env.observation_space
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # contains() warns about casts, which the finding says better
        outside = [obs for obs in run.observations if not space.contains(obs)]
    if outside:
        yield Finding(
            "warning",
            f"{len(outside)} of {len(run.observations)} observations are not in the observation space",
            _misfit(space, outside[0]),
            "widen the bounds or mend shape and dtype; the agent sees float32 either way",
        )
    else:
        yield Finding("ok", "observations belong to their space")
    if not all(_finite(obs) for obs in run.observations):
        yield Finding(
            "error",
            "an observation is NaN or infinite",
            "training stops at it",
            "mend the environment, or clip",
        )
    if not all(np.ndim(reward) == 0 for reward in run.rewards):
        yield Finding("error", "the reward is not one number", repr(run.rewards[0]), "return float(reward)")
    elif not all(math.isfinite(float(reward)) for reward in run.rewards):
        yield Finding("error", "a reward is NaN or infinite", "training stops at it", "mend the environment")
    flags = (run.terminated, run.truncated)
    if not all(isinstance(value, bool | np.bool_) for kind in flags for value in kind):
        yield Finding("warning", "terminated or truncated is not a bool", "", "return bool(terminated)")


def _misfit(space: Any, obs: Any) -> str:
    if not isinstance(obs, np.ndarray) or not hasattr(space, "low"):
        return f"found {obs!r} in {space}"
    if obs.shape != space.shape:
        return f"its shape is {obs.shape}, the space says {space.shape}"
    if obs.dtype != space.dtype:
        return f"its dtype is {obs.dtype}, the space says {space.dtype}"
    beyond = np.argwhere((obs < space.low) | (obs > space.high) | ~np.isfinite(obs))
    where = tuple(int(i) for i in beyond[0]) if len(beyond) else ()
    return f"entry {where} is {obs[where]}, outside [{space.low[where]}, {space.high[where]}]"


def _finite(obs: Any) -> bool:
    if isinstance(obs, dict):
        return all(_finite(part) for part in obs.values())
    if isinstance(obs, tuple):
        return all(_finite(part) for part in obs)
    return bool(np.isfinite(obs).all()) if np.issubdtype(np.asarray(obs).dtype, np.number) else True


def _check_masks(env: Any, spec: EnvSpec, run: Trajectory) -> Iterator[Finding]:
    if not run.masks:
        return
    method = callable(masks.mask_method(env))
    where = "action_masks()" if method else f"info[{masks.INFO!r}]"
    faults = [why for mask in run.masks if (why := masks.fault(spec.action, mask)) is not None]
    if faults:
        fix = (
            f"return {legal_size(spec.action)} bools, one per option, and leave one to choose in every state"
        )
        states = f"{len(faults)} of {len(run.masks)} masks of {where} cannot be used"
        yield Finding("error" if method else "warning", states, faults[0], fix)
        return
    share = np.mean([mask.astype(bool).mean() for mask in run.masks])
    told = f"{where} left {share:.0%} of the actions legal in {len(run.masks)} states; only those were taken"
    if method:
        yield Finding("ok", told)
    else:
        yield Finding(
            "advice",
            told,
            "training does not read a mask from info, so every action may be taken",
            "give the environment or a wrapper a method action_masks() that returns it, if it shall",
        )


def _check_references(rows: Any, seed: int) -> Iterator[Finding]:
    """Whether numbers stand for the observations that were returned, before and after a reset."""
    if not rows.spec.refers:
        return
    generator, compared = np.random.default_rng(seed), 0
    step = rows.reset(seed)
    for _ in range(STEPS):
        pairs = ((step.reference, step.obs), (step.next_reference, step.next_obs))
        for reference, seen in pairs:
            if not references.same(rows.resolve(reference), seen):
                yield Finding(
                    "error",
                    f"the number {int(reference[0])} stands for another observation than the one returned",
                    f"{references.RESOLVE} makes something else of what {references.REFER} said",
                    "let it return exactly what reset and step do, or put wrappers that change it inside",
                )
                return
            compared += 1
        step = rows.step(masks.choose(rows.spec.action, generator, (1,), step.legal))
    yield Finding("ok", f"numbers stood for all of {compared} observations; replays keep those")


def _check_ends(spec: EnvSpec, run: Trajectory) -> Iterator[Finding]:
    lengths = _lengths(run)
    terminated = [length for length, term in lengths if term]
    if (
        len(terminated) >= 3
        and len(set(terminated)) == 1
        and terminated[0] >= 10
        and len(terminated) == len(lengths)
    ):
        yield Finding(
            "warning",
            f"every episode terminated after exactly {terminated[0]} steps",
            "a time limit reported as termination makes the agent believe that nothing comes after it",
            "return truncated=True instead, or wrap it in gymnasium.wrappers.TimeLimit",
        )
    elif spec.time_limit is not None and terminated and all(n == spec.time_limit for n in terminated):
        yield Finding(
            "warning",
            f"episodes terminate exactly at the time limit of {spec.time_limit}",
            "the environment reports its time limit as termination",
            "return truncated=True there",
        )
    elif lengths:
        cut = len(lengths) - len(terminated)
        yield Finding(
            "ok", f"{len(terminated)} episodes terminated and {cut} were truncated with random actions"
        )
    if not lengths and spec.time_limit is None:
        yield Finding(
            "advice",
            f"no episode ended within {STEPS} random steps and there is no time limit",
            "returns cannot be compared without an end, and an exact resume replays the whole episode",
            "set a time limit: --set time_limit=1000",
        )


def _lengths(run: Trajectory) -> list[tuple[int, bool]]:
    lengths, elapsed = [], 0
    for term, trunc in zip(run.terminated, run.truncated, strict=True):
        elapsed += 1
        if term or trunc:
            lengths.append((elapsed, bool(term)))
            elapsed = 0
    return lengths


def _check_seeding(
    env: Any,
    other: Any,
    first: Trajectory,
    actions: list[Any],
    seed: int,
    spec: EnvSpec,
    rebuilt: bool | None,
) -> Iterator[Finding]:
    again = _run(env, actions, seed, spec)
    survives = not _same(first, again)
    fresh_differs = survives if rebuilt is None else not _same(first, _run(other, actions, seed, spec))
    if fresh_differs:
        yield Finding(
            "warning",
            "the same seed and actions gave another trajectory",
            "a run cannot be reproduced or resumed exactly",
            "draw every random number from self.np_random, seeded by super().reset(seed=seed)",
        )
    elif survives and rebuilt:
        yield Finding(
            "ok", "some state survives reset, so it is rebuilt for every episode; a resumed run is exact"
        )
    elif survives:
        yield Finding(
            "warning",
            "some state survives reset",
            "a new environment follows the seed but a used one does not, so a resume would not be exact",
            "fresh_every_episode=True rebuilds the environment for every episode",
        )
    else:
        yield Finding("ok", "the same seed gives the same trajectory; a resumed run is exact")
    if _same_obs(_first(env, seed)[0], _first(env, seed + 1)[0]) and _same(
        first, _run(env, actions, seed + 1, spec)
    ):
        yield Finding(
            "advice",
            "different seeds gave the same trajectory",
            "the environment is deterministic or ignores its seed",
            "if it should vary, draw from self.np_random",
        )


def _same(a: Trajectory, b: Trajectory) -> bool:
    return (
        len(a.observations) == len(b.observations)
        and all(_same_obs(x, y) for x, y in zip(a.observations, b.observations, strict=True))
        and all(float(x) == float(y) for x, y in zip(a.rewards, b.rewards, strict=True))
    )


def _same_obs(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_same_obs(a[name], b[name]) for name in a)
    if isinstance(a, tuple):
        return all(_same_obs(x, y) for x, y in zip(a, b, strict=True))
    return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _check_ranges(spec: EnvSpec, run: Trajectory) -> Iterator[Finding]:
    rewards = np.array([float(reward) for reward in run.rewards])
    yield Finding("ok", f"rewards of random actions lie in [{rewards.min():.4g}, {rewards.max():.4g}]")
    if np.abs(rewards).max() > 100:
        yield Finding(
            "advice",
            f"rewards reach {np.abs(rewards).max():.4g}",
            "large returns make the value loss dominate",
            "normalise rewards: --set normalize_reward=true",
        )
    for name, part in _boxes(spec.observation):
        if part.dtype == "uint8":
            continue
        values = np.stack([np.asarray(obs[name] if name else obs, np.float64) for obs in run.observations])
        size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
        if size > LARGE:
            where = f"observation {name!r}" if name else "observations"
            yield Finding(
                "advice",
                f"{where} reach {size:.4g}",
                "networks learn slowly from large inputs",
                "normalise observations: --set normalize_obs=true",
            )
    if isinstance(spec.action, Box) and not spec.action.bounded:
        yield Finding(
            "advice",
            "the action space is unbounded",
            "actions cannot be squashed or rescaled",
            "give the Box finite bounds",
        )


def _boxes(space: Space) -> list[tuple[str, Box]]:
    if isinstance(space, Dict):
        return [(name, part) for name, part in space.parts if isinstance(part, Box) and "/" not in name]
    return [("", space)] if isinstance(space, Box) else []


def _check_cost(rows: Any, n_envs: int, given: bool) -> Iterator[Finding]:
    if given:
        cost = registry.measure_rows(rows)
        yield Finding("ok", f"a step costs {cost * 1e6:.0f} µs")
        return
    _, reason = registry.choose_backend([rows.sources[0]] * n_envs)
    cost = registry.step_cost(rows.sources[0])
    yield Finding("ok", f"a step costs {cost * 1e6:.0f} µs; {n_envs} rows would run {reason}")


# -- JAX environments ----------------------------------------------------------------------------------------


def _check_jax(env: Any, seed: int) -> Iterator[Finding]:
    import jax

    from sparring.envs import batched

    spec: EnvSpec = env.spec
    yield Finding(
        "ok", f"observation {describe(spec.observation)}, action {describe(spec.action)}, JAX-native"
    )
    try:
        hash(env)
    except TypeError:
        yield Finding(
            "error",
            "the environment cannot be hashed",
            "it is a static argument of jit",
            "make it a frozen dataclass",
        )
        return
    key = jax.random.key(seed)
    action = masks.choose(spec.action, np.random.default_rng(0))
    try:
        state = jax.eval_shape(env.reset, key)
        after, outcome = jax.eval_shape(env.step, state, action, key)
        obs = jax.eval_shape(env.observe, state)
    except Exception as error:  # noqa: BLE001  (whatever a stranger's environment raises is a finding)
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield Finding(
            "error", "it cannot be traced by jax", why, "use jnp and lax instead of Python branches"
        )
        return
    yield from _check_shapes(spec, state, after, obs, outcome)
    if (bad := _jax_mask_fault(env, state)) is not None:
        yield bad
        return
    rows = 4
    try:
        host = batched.JaxHost(env, rows)
        first, again = (_random_run(host, host.spec, seed) for _ in range(2))
        other = _random_run(host, host.spec, seed + 1)
    except Exception as error:  # noqa: BLE001
        why = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield Finding(
            "error", "it does not run under jit and vmap", why, "keep state shapes and dtypes constant"
        )
        return
    if _same_leaves(first, again):
        yield Finding("ok", "it is pure: the same key gives the same trajectory under jit and vmap")
    else:
        yield Finding(
            "error", "the same key gave another trajectory", "it is not pure", "keep all state in `state`"
        )
    if _same_leaves(first, other):
        yield Finding("advice", "different keys gave the same trajectory", "it draws no random number")
    yield from _check_legal(spec, first)
    floats = [leaf for leaf in jax.tree.leaves(first) if np.issubdtype(leaf.dtype, np.floating)]
    if not all(np.isfinite(leaf).all() for leaf in floats):
        yield Finding("error", "a value is NaN or infinite", "training stops at it", "mend the dynamics")
    if spec.time_limit is None and not any(step.terminated.any() for step in first):
        yield Finding(
            "advice", f"no episode ended within {len(first)} steps", "", "set time_limit in the EnvSpec"
        )


def _jax_mask_fault(env: Any, state: Any) -> Finding | None:
    """What keeps `legal` from being used, if anything does."""
    import jax

    from sparring.envs.batched import WithTimeLimit

    told = callable(getattr(env.env if isinstance(env, WithTimeLimit) else env, "legal", None))
    if told and not env.spec.masks_actions:
        return Finding(
            "error",
            "`legal` is not used",
            "the spec does not say masks_actions",
            "set masks_actions=True in it",
        )
    if not env.spec.masks_actions:
        return None
    if not told:
        return Finding(
            "error", "there is no `legal(state)`", "the spec says masks_actions", "add it, or leave that out"
        )
    found, size = jax.eval_shape(env.legal, state), legal_size(env.spec.action)
    if found.shape != (size,) or found.dtype != bool:
        return Finding(
            "error",
            f"`legal` returns {found.dtype}{list(found.shape)}",
            f"a mask of {describe(env.spec.action)} is bool[{size}]",
            "return one bool per option",
        )
    return None


def _check_legal(spec: EnvSpec, steps: list[Any]) -> Iterator[Finding]:
    """The masks of a run, all rows."""
    if not spec.masks_actions:
        return
    found = np.concatenate([np.asarray(step.legal) for step in steps])
    empty = sum(int((~part.any(axis=-1)).sum()) for part in masks.options(spec.action, found))
    if empty:
        yield Finding(
            "error",
            f"in {empty} of {len(found)} states no action is legal",
            "the agent must take one",
            "leave one to choose, or end the episode before",
        )
    else:
        yield Finding(
            "ok",
            f"{found.mean():.0%} of the actions were legal in {len(found)} states; only those were taken",
        )


def _check_shapes(spec: EnvSpec, state: Any, after: Any, obs: Any, outcome: Any) -> Iterator[Finding]:
    import jax

    if str(jax.tree.structure(state)) != str(jax.tree.structure(after)) or any(
        (a.shape, a.dtype) != (b.shape, b.dtype)
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
    ):
        yield Finding(
            "error",
            "step returns another kind of state than reset",
            f"{state} becomes {after}",
            "keep structure, shapes and dtypes",
        )
    parts = spec.observation.parts if isinstance(spec.observation, Dict) else (("", spec.observation),)
    for name, part in parts:
        found = obs[name] if name else obs
        if found.shape != event_shape(part) or found.dtype != dtype_of(part):
            yield Finding(
                "error",
                f"observation {name} is {found.dtype}{list(found.shape)}".replace("  ", " "),
                f"the space says {dtype_of(part)}{list(event_shape(part))}",
                "mend the space or `observe`",
            )
    if outcome.reward.shape != () or outcome.terminated.dtype != bool or outcome.truncated.dtype != bool:
        yield Finding("error", "the outcome is not (number, bool, bool)", str(outcome), "return an Outcome")


def _random_run(host: Any, spec: EnvSpec, seed: int) -> list[Any]:
    """A hundred steps of all rows with random actions from a fixed seed, legal where there are masks."""
    generator = np.random.default_rng(0)
    steps = [host.reset(seed)]
    for _ in range(100):
        steps.append(host.step(masks.choose(spec.action, generator, (spec.rows,), steps[-1].legal)))
    return steps


def _same_leaves(a: Any, b: Any) -> bool:
    import jax

    return all(
        x.tobytes() == y.tobytes() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# -- Everything else -----------------------------------------------------------------------------------------


def _check_host(host: Any, seed: int) -> Iterator[Finding]:
    """Vector environments, EnvPool and host environments of the user's own."""
    spec: EnvSpec = host.spec
    yield Finding(
        "ok", f"observation {describe(spec.observation)}, action {describe(spec.action)}, {spec.rows} rows"
    )
    mode = getattr(host, "autoreset_mode", None)
    if mode == "NEXT_STEP":
        yield Finding(
            "advice",
            "it spends a step on every reset (NEXT_STEP)",
            "the agent's action of that step is ignored and the step is not learned from",
            ""
            if type(host).__name__ == "EnvPoolRows"
            else "build it with autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP to lose none",
        )
    elif mode is not None:
        yield Finding("ok", f"auto-reset mode {mode}")
    try:
        runs = []
        for _ in range(2):
            steps = _random_run(host, spec, seed)
            runs.append([(step.reward, step.obs) for step in steps])
        yield from _check_legal(spec, steps)
        if all(_same_obs(x[1], y[1]) for x, y in zip(*runs, strict=True)):
            yield Finding("ok", "the same seed gives the same trajectory")
        else:
            yield Finding(
                "warning",
                "the same seed and actions gave another trajectory",
                "runs cannot be reproduced",
                "",
            )
        if host.snapshot() is None:
            yield Finding(
                "advice",
                "it cannot be resumed exactly",
                "it keeps its own seeds and state; a resumed run starts new episodes",
                "give the id or a list of factories to Gymnasium's adapter instead",
            )
    except SparringError as error:
        yield Finding("error", "it failed", str(error), "see the reason")
    finally:
        host.close()
