"""A trained agent for other programs: one function from observations to actions, held against the agent.

Everything between a raw observation and the action that the environment takes is inside: normalisation,
memory, the mode of the distribution, squashing, scaling and clipping. What a policy remembers goes in and out
as plain arrays.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from sparring import actor
from sparring.config import as_mapping
from sparring.errors import missing_extra
from sparring.evaluation.evaluator import SEED_OFFSET, Player, alone
from sparring.export import flat
from sparring.model import Agent
from sparring.ops import keys
from sparring.runs import tensors, tree
from sparring.runs.durable import replace_file
from sparring.runs.provenance import provenance
from sparring.spaces import spec_to_json
from sparring.types import ActorState, Behaviour

PLATFORMS = ("cpu", "cuda")
RECORDED = 1000
"""Observations on which an export is held against the agent."""

Step = Callable[[Any, Any, Any], np.ndarray]
"""Acts on an observation, whether it starts an episode, and the legal actions or None."""


class Decision(NamedTuple):
    """What one row of an agent saw and did."""

    obs: Any
    first: np.ndarray
    legal: Any
    action: np.ndarray


class Parity(NamedTuple):
    """How an exported policy compares with the agent it came from."""

    observations: int
    equal: int
    """decisions that agree in every bit"""
    largest: float
    """largest difference of two numbers in an action"""

    def __str__(self) -> str:
        return (
            f"{self.equal:,} of {self.observations:,} decisions equal bit for bit, largest difference "
            f"{self.largest:.3g}"
        )


class Port(NamedTuple):
    """An array that goes in or comes out; its first axis is the batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class Pipeline(NamedTuple):
    """An agent's deterministic decision as a function of flat arrays."""

    function: Callable[..., tuple[Any, ...]]
    """(*inputs) → (action, *memory)"""
    inputs: list[Port]
    outputs: list[Port]


def pipeline(agent: Agent, legal: Any = None) -> Pipeline:
    """The whole way from observation to action; `legal` is an example of the masks, where there are any.

    Inputs are the parts of the observation, `first` and the memory where the agent has one, and `legal`.
    A row with `first` forgets, so zeros are a good first memory.
    """
    algo, weights = _noiseless(agent.algo), jax.tree.map(jnp.asarray, agent.weights)
    obs = jax.eval_shape(lambda: _zeros(agent))
    carry = jax.eval_shape(lambda: algo.carry(1))
    remembers = bool(jax.tree.leaves(carry))
    given: dict[str, Any] = {"observation": obs}
    if remembers:
        given |= {"first": jax.ShapeDtypeStruct((1,), bool), "memory": carry}
    if legal is not None:
        given["legal"] = jax.ShapeDtypeStruct((1, *np.shape(legal)[1:]), bool)
    structure = jax.tree.structure(given)

    def decide(*arrays: Any) -> tuple[Any, ...]:
        parts = jax.tree.unflatten(structure, arrays)
        rows = arrays[0].shape[0]
        state = ActorState(
            parts["observation"],
            parts.get("first", jnp.zeros(rows, bool)),
            parts.get("memory", carry),
            parts.get("legal"),
        )
        behaviour = Behaviour(greedy=jnp.ones(rows, bool))
        action, _, memory = actor.act(algo, weights, state, behaviour, jax.random.key(0))
        return (action, *jax.tree.leaves(memory))

    inputs = _ports(given)
    leaves = jax.tree.leaves(given)
    made = jax.eval_shape(decide, *leaves)
    outputs = _ports({"action": made[0]})
    outputs += [port for port in inputs if port.name.startswith("memory")]
    return Pipeline(decide, inputs, outputs)


def record(agent: Agent, env: Any, count: int = RECORDED, seed: int = 0) -> list[Decision]:
    """Decisions of the agent in row 0 of a host environment, deterministic."""
    key = keys.once(jax.random.key(seed), keys.EVALUATION)
    player = Player(agent.algo, agent.weights, alone(True), key)
    timestep = env.reset(seed + SEED_OFFSET)
    kept: list[Decision] = []
    for _ in range(count):
        action = player.act(timestep)
        state: Any = player.state
        obs, first, legal = jax.tree.map(np.array, (state.obs, state.first, state.legal))
        kept.append(Decision(obs, first, legal, action.copy()))
        timestep = env.step(action)
    return kept


def compare(decisions: list[Decision], step: Step) -> Parity:
    """Lets an exported policy decide where the agent did."""
    equal, largest = 0, 0.0
    for decision in decisions:
        action = np.asarray(step(decision.obs, decision.first, decision.legal))
        same = action.dtype == decision.action.dtype and action.tobytes() == decision.action.tobytes()
        equal += int(same)
        gap = np.abs(action.astype(np.float64) - decision.action.astype(np.float64))
        largest = max(largest, float(gap.max(initial=0.0)))
    return Parity(len(decisions), equal, largest)


def stepper(made: Pipeline, call: Callable[..., Any]) -> Step:
    """A policy that remembers by itself, around a call that takes and returns flat arrays."""
    memory = [np.zeros((1, *port.shape), port.dtype) for port in made.inputs if port.name[:6] == "memory"]

    def step(obs: Any, first: Any, legal: Any) -> np.ndarray:
        given: dict[str, Any] = {"observation": obs}
        if memory:
            given |= {"first": np.asarray(first), "memory": list(memory)}
        if any(port.name == "legal" for port in made.inputs):
            given["legal"] = legal
        action, *after = call(*jax.tree.leaves(given))
        memory[:] = [np.asarray(x) for x in after]
        return np.asarray(action)

    return step


def contract(agent: Agent, made: Pipeline, **more: Any) -> dict[str, Any]:
    """What a program must know to call the policy."""
    return {
        "algorithm": agent.reference,
        "spec": spec_to_json(agent.spec),
        "config": as_mapping(agent.algo.config),
        "inputs": [port._asdict() for port in made.inputs],
        "outputs": [port._asdict() for port in made.outputs],
        "deterministic": True,
        "memory": "Give zeros at first and then what the last call returned; `first` is true where a row "
        "starts an episode and makes it forget."
        if any(port.name == "first" for port in made.inputs)
        else "none",
        "provenance": provenance(),
        **more,
    }


def write_stablehlo(path: Path, agent: Agent, decisions: list[Decision]) -> tuple[Parity, dict[str, Any]]:
    """Serialises the policy with jax.export, reads the file back and holds it against the agent."""
    made = pipeline(agent, decisions[0].legal if decisions else None)
    exported, batch = _exported(made)
    try:
        body = bytes(exported.serialize())
    except ImportError as error:
        raise missing_extra("flatbuffers", "export") from error
    replace_file(path, [body])
    read = jax.export.deserialize(bytearray(path.read_bytes()))
    parity = compare(decisions, stepper(made, jax.jit(read.call)))
    about = contract(
        agent,
        made,
        format="jax.export",
        batch=batch,
        platforms=list(exported.platforms),
        sha256=hashlib.sha256(body).hexdigest(),
    )
    write_contract(path, about)
    return parity, about


def _exported(made: Pipeline) -> tuple[Any, str | int]:
    """The program for any number of rows, or for one where its operations do not allow that."""

    def each(*arrays: Any) -> tuple[Any, ...]:
        """Row by row, because random draws (of which nothing is used here) need a known shape."""
        one = jax.vmap(lambda *row: made.function(*(x[None] for x in row)))(*arrays)
        return tuple(x[:, 0] for x in one)

    try:
        (rows,) = jax.export.symbolic_shape("rows")
        shapes = [jax.ShapeDtypeStruct((rows, *port.shape), port.dtype) for port in made.inputs]
        return jax.export.export(jax.jit(each), platforms=PLATFORMS)(*shapes), "rows"
    except (TypeError, ValueError, NotImplementedError):  # a network of the user's own
        shapes = [jax.ShapeDtypeStruct((1, *port.shape), port.dtype) for port in made.inputs]
        return jax.export.export(jax.jit(made.function), platforms=PLATFORMS)(*shapes), 1


def write_onnx(path: Path, agent: Agent, decisions: list[Decision]) -> tuple[Parity, dict[str, Any]]:
    """Writes the policy as ONNX, lets onnxruntime read the file and holds it against the agent."""
    from sparring.export import onnx_graph

    made = pipeline(agent, decisions[0].legal if decisions else None)
    # In one graph no two arrays may have the same name.
    outputs = [port._replace(name=port.name.replace("memory", "next_memory", 1)) for port in made.outputs]
    made = made._replace(outputs=outputs)
    row = [jax.ShapeDtypeStruct((1, *port.shape), port.dtype) for port in made.inputs]
    program = flat.for_rows(made.function, row, jax.export.symbolic_shape("rows")[0])
    body = onnx_graph.model(program, [port.name for port in made.inputs], [port.name for port in outputs])
    replace_file(path, [body])
    parity = compare(decisions, stepper(made, onnx_graph.loaded(path)))
    about = contract(
        agent,
        made,
        format="onnx",
        batch="rows",
        opset=onnx_graph.OPSET,
        sha256=hashlib.sha256(body).hexdigest(),
    )
    write_contract(path, about)
    return parity, about


def write_safetensors(path: Path, agent: Agent, decisions: list[Decision]) -> tuple[Parity, dict[str, Any]]:
    """The weights under readable names; what they belong to lies beside them as JSON."""
    replace_file(path, tensors.encode(tree.flatten(agent.weights)))
    again = Agent(agent.algo, tree.unflatten(agent.weights, tensors.read(path)), agent.reference)
    made = pipeline(again, decisions[0].legal if decisions else None)
    parity = compare(decisions, stepper(made, jax.jit(made.function)))
    about = contract(agent, made, format="safetensors", sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    write_contract(path, about)
    return parity, about


def write_contract(path: Path, about: dict[str, Any]) -> None:
    """The contract beside an exported file."""
    replace_file(beside(path), [json.dumps(about, indent=1).encode() + b"\n"])


def beside(path: Path) -> Path:
    """Where the contract of an exported file lies."""
    return path.with_name(f"{path.name}.json")


def _noiseless(algo: Any) -> Any:
    """The algorithm without gSDE's noise, which a deterministic decision neither needs nor remembers."""
    if not getattr(algo.config, "use_sde", False):
        return algo
    return dataclasses.replace(algo, config=dataclasses.replace(algo.config, use_sde=False))


def _zeros(agent: Agent) -> Any:
    from sparring import spaces

    return jax.tree.map(lambda x: jnp.zeros((1, *x.shape), x.dtype), spaces.zeros(agent.spec.observation))


def _ports(tree_of_arrays: Any) -> list[Port]:
    leaves = jax.tree_util.tree_leaves_with_path(tree_of_arrays)
    return [Port(tree.path_of(keys_), tuple(x.shape[1:]), np.dtype(x.dtype).name) for keys_, x in leaves]
