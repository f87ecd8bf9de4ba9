"""ONNX: every kind of policy in onnxruntime beside the agent, and every rule of the converter beside jax."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from cli_help import quick
from conftest import TINY, algorithm

from sparring.errors import ConfigError
from sparring.export import flat, onnx_graph, policy
from sparring.model import Agent
from sparring.spaces import Box, Dict, Discrete, EnvSpec, MultiBinary, MultiDiscrete, Space, legal_size
from sparring.types import TimeStep

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
RECORDED = 24


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick(tmp_path_factory):
        yield


# -- policies ----------------------------------------------------------------------------------------------

VECTOR = Box((4,))
IMAGE = Box((36, 36, 1), 0, 255, "uint8")
PARTS = Dict((("n", Discrete(3)), ("picture", IMAGE), ("place", Box((2,))), ("signs", MultiDiscrete((2, 3)))))
BOUNDED = Box((2,), -1.0, (1.0, 2.0))
ONE_OF, SOME_OF, BITS = Discrete(3), MultiDiscrete((2, 3)), MultiBinary(3)
SEQUENCE = {"core_size": 4, "core_heads": 2, "core_window": 4}

Case = tuple[str, Space, Space, dict[str, Any]]
CASES: dict[str, Case] = {
    "PPO, Discrete": ("ppo", VECTOR, ONE_OF, {}),
    "PPO, Box, squashed, observations normalised": (
        "ppo",
        VECTOR,
        BOUNDED,
        {"normalize_obs": True, "squash": True, "log_std": "state"},
    ),
    "A2C, frame stack": ("a2c", VECTOR, ONE_OF, {"frame_stack": 3}),
    "TD3, Box": ("td3", VECTOR, BOUNDED, {}),
    "PPO, MultiDiscrete": ("ppo", VECTOR, SOME_OF, {}),
    "PPO, MultiBinary": ("ppo", VECTOR, BITS, {}),
    "PPO, Box, clipped": ("ppo", VECTOR, BOUNDED, {"log_std_init": 0.0}),
    "PPO, Box, gSDE": ("ppo", VECTOR, BOUNDED, {"use_sde": True}),
    "PPO, Box in bins": ("ppo", VECTOR, BOUNDED, {"action_bins": (3,)}),
    "PPO, Box in a joint grid of bins": (
        "ppo",
        VECTOR,
        BOUNDED,
        {"action_bins": (3,), "action_grid": "joint"},
    ),
    "PPO, legal actions of a Discrete": ("ppo", VECTOR, ONE_OF, {"masked": True}),
    "PPO, legal actions of a MultiDiscrete": ("ppo", VECTOR, SOME_OF, {"masked": True}),
    "PPO, legal actions of a MultiBinary": ("ppo", VECTOR, BITS, {"masked": True}),
    "PPO, Dict observation with an image, frame stack": (
        "ppo",
        PARTS,
        BOUNDED,
        {"normalize_obs": True, "frame_stack": 2},
    ),
    "REINFORCE": ("reinforce", VECTOR, ONE_OF, {}),
    "DQN, Discrete": ("dqn", VECTOR, ONE_OF, {}),
    "DQN, MultiDiscrete, legal actions": ("dqn", VECTOR, SOME_OF, {"masked": True}),
    "DQN, Box in bins": ("dqn", VECTOR, BOUNDED, {"action_bins": (3,)}),
    "DQN, noisy layers": ("dqn", VECTOR, ONE_OF, {"exploration": "noisy"}),
    "PQN": ("pqn", VECTOR, ONE_OF, {}),
    "GDI": ("gdi", VECTOR, ONE_OF, {}),
    "SAC, Box": ("sac", VECTOR, BOUNDED, {}),
    "SAC, Discrete": ("sac", VECTOR, ONE_OF, {}),
    "SAC, images (CNN), frame stack": ("sac", IMAGE, BOUNDED, {"frame_stack": 2}),
    "CrossQ": ("crossq", VECTOR, BOUNDED, {}),
    "SAC, GRU core": ("sac", VECTOR, BOUNDED, {"core": "gru", **SEQUENCE}),
    "SAC, LSTM core": ("sac", VECTOR, BOUNDED, {"core": "lstm", **SEQUENCE}),
    "SAC, S5 core": ("sac", VECTOR, BOUNDED, {"core": "s5", **SEQUENCE}),
    "SAC, transformer core": ("sac", VECTOR, BOUNDED, {"core": "transformer", **SEQUENCE}),
    **{
        f"TD3, {name}": ("td3", VECTOR, BOUNDED, {"activation": name})
        for name in ("tanh", "elu", "gelu", "silu", "leaky_relu", "sigmoid")
    },
}
QUICK = {"PPO, Discrete", "A2C, frame stack", "TD3, Box"}
LIKE = {
    "PPO, MultiBinary",
    "PPO, Box, gSDE",
    "PPO, Box in a joint grid of bins",
    "PPO, legal actions of a MultiDiscrete",
    "PPO, legal actions of a MultiBinary",
    "REINFORCE",
    "DQN, Discrete",
    "DQN, Box in bins",
    "PQN",
    "SAC, Box",
    "SAC, Discrete",
    "SAC, LSTM core",
}
"""Whose operations are in others too: `make exhaustive` tries them."""


class Random:
    """A world of one row that shows random observations and legal actions, in episodes of seven steps."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.rng = np.random.default_rng(0)
        self.t = 0

    def reset(self, seed: int) -> TimeStep:
        return self.step(None)

    def step(self, action: Any) -> TimeStep:
        obs, legal, over = self.draw(self.spec.observation), None, np.array([self.t % 7 == 6])
        self.t += 1
        if self.spec.masks_actions:
            legal = self.rng.random((1, legal_size(self.spec.action))) < 0.5
            legal[:, [0, 2]] = True  # an option of either branch
        return TimeStep(obs, np.zeros(1, np.float32), over, np.zeros(1, bool), obs, legal=legal)

    def draw(self, space: Space) -> Any:
        match space:
            case Dict(parts):
                return {name: self.draw(part) for name, part in parts}
            case Discrete(n):
                return self.rng.integers(n, size=1, dtype=np.int32)
            case MultiDiscrete(sizes):
                return self.rng.integers(sizes, size=(1, len(sizes)), dtype=np.int32)
            case Box(shape, dtype="uint8"):
                return self.rng.integers(256, size=(1, *shape), dtype=np.uint8)
            case Box(shape):
                return self.rng.normal(scale=3.0, size=(1, *shape)).astype(np.float32)
        raise AssertionError(space)


def agent_for(case: Case) -> Agent:
    name, observation, action, settings = case
    settings = dict(settings)
    spec = EnvSpec("made", observation, action, masks_actions=settings.pop("masked", False))
    cls = algorithm(name)
    algo = cls(spec, cls.Config(**{**TINY[name], **settings}), 100.0)
    return Agent(algo, jax.jit(lambda key: algo.policy(algo.init(key)))(jax.random.key(1)), name)


def marks(label: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (label not in QUICK) + [pytest.mark.exhaustive] * (label in LIKE)


@pytest.mark.parametrize("label", [pytest.param(label, marks=marks(label)) for label in CASES])
def test_onnxruntime_decides_as_the_agent_does(label: str, tmp_path: Path) -> None:
    agent = agent_for(CASES[label])
    decisions = policy.record(agent, Random(agent.spec), RECORDED)
    file = tmp_path / "policy.onnx"
    parity, about = policy.write_onnx(file, agent, decisions)
    assert parity.observations == RECORDED
    assert parity.largest < 1e-5
    numbers = "float" in about["outputs"][0]["dtype"]
    assert parity.equal == RECORDED or numbers
    assert len({decision.action.tobytes() for decision in decisions}) > 1  # else nothing was compared
    assert about["batch"] == "rows"
    assert json.loads(policy.beside(file).read_text()) == json.loads(json.dumps(about))
    # Many rows at once give what each of them gives alone.
    call, rng = onnx_graph.loaded(file), np.random.default_rng(1)
    given = [
        (rng.random((5, *port["shape"])) * (256 if port["dtype"] == "uint8" else 2)).astype(port["dtype"])
        for port in about["inputs"]
    ]
    alone = [call(*(x[row : row + 1] for x in given)) for row in range(5)]
    for port, together, *rows in zip(about["outputs"], call(*given), *alone, strict=True):
        assert together.shape == (5, *port["shape"])
        assert together.dtype == port["dtype"]
        np.testing.assert_allclose(together, np.concatenate(rows), atol=1e-5)


@pytest.mark.slow
def test_operations_of_a_gpu_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = agent_for(CASES["SAC, S5 core"])
    decisions = policy.record(agent, Random(agent.spec), RECORDED)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")  # an S5 core then adds at a place
    parity, _ = policy.write_onnx(tmp_path / "policy.onnx", agent, decisions)
    assert parity.largest < 1e-5
    assert "Pad" in {node.op_type for node in onnx.load(tmp_path / "policy.onnx").graph.node}


def test_the_page_lists_what_was_tried() -> None:
    table = DOCS.read_text().partition("| policy |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (?!-)(.+?) \|", table, re.MULTILINE) == list(CASES)


# -- rules -------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
UNIT = np.tanh(X)
WHOLE = np.arange(60, dtype=np.int32).reshape(5, 3, 4) % 7
TRUE = X > 0
PICTURE = np.random.default_rng(1).normal(size=(5, 9, 8, 3)).astype(np.float32)
KERNEL = np.random.default_rng(2).normal(size=(3, 2, 3, 4)).astype(np.float32)
TABLE = np.random.default_rng(3).normal(size=(7, 6)).astype(np.float32)
lax = jax.lax

WHAT: list[tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = [
    *((function, (X,)) for function in (jnp.abs, jnp.sin, jnp.cos, jnp.tan, jnp.sinh, jnp.cosh)),
    *((function, (X,)) for function in (jnp.arcsinh, jnp.arctan, jnp.tanh, jnp.exp, jnp.expm1, jnp.sign)),
    *((function, (X,)) for function in (lax.erf, lax.logistic, jnp.floor, jnp.ceil, jnp.negative)),
    *((function, (UNIT,)) for function in (jnp.arccos, jnp.arcsin, jnp.arctanh, jnp.log1p)),
    *((function, (1e-6 * UNIT,)) for function in (jnp.log1p, jnp.expm1)),
    *((function, (1 + X * X,)) for function in (jnp.arccosh, jnp.log, jnp.sqrt, lax.rsqrt)),
    *((function, (X, UNIT)) for function in (lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min, lax.rem)),
    *((function, (X, np.round(X))) for function in (lax.lt, lax.le, lax.gt, lax.ge)),
    *((function, (WHOLE, WHOLE[::-1].copy())) for function in (lax.eq, lax.ne, lax.add, lax.max)),
    *((function, (TRUE, TRUE[::-1].copy())) for function in (lax.bitwise_and, lax.bitwise_or, lax.eq)),
    (lax.bitwise_xor, (TRUE, TRUE[::-1].copy())),
    (lax.bitwise_not, (TRUE,)),
    (lambda n: n & 3, (WHOLE,)),
    (lambda x: lax.pow(1 + x * x, x), (X,)),
    (lambda x: lax.integer_pow(x, 3) + lax.integer_pow(x, -2) + lax.integer_pow(x, 0), (X,)),
    (lax.square, (X,)),
    (lambda x: jnp.round(2 * x), (np.round(X, 1),)),
    (lambda x: jnp.isfinite(x / (x - x[:, :1])), (X,)),
    (lambda x: lax.clamp(-0.5, x, 0.5), (X,)),
    (lambda x: lax.stop_gradient(lax.optimization_barrier(jnp.copy(x))), (X,)),
    (lambda x: x.astype(jnp.int32) + (x > 0), (10 * X,)),
    (lambda b, x: jnp.where(b, x, -1.0), (TRUE, X)),
    (lambda n, x: lax.select_n(n % 3, x, -x, 2 * x), (WHOLE, X)),
    (lambda x: jax.checkpoint(jnp.sin)(jax.nn.relu(x)), (X,)),
    (lambda b, c: jnp.where(b, c, ~c), (TRUE, TRUE[::-1].copy())),
    (lambda x: x.sum((1, 2)), (X,)),
    (lambda x: x.max(1) + x.min(1) + x.prod(2)[:, :1], (X,)),
    (lambda b: b.all(2) | b.any(1)[:, :3], (TRUE,)),
    (lambda x: jnp.stack([x.argmax(1), x.argmin(1)], 2), (X,)),
    (lambda x: jnp.cumsum(x, 1) + lax.cumsum(x, 2, reverse=True), (X,)),
    (lambda x: x.reshape(x.shape[0], 12).T.T, (X,)),
    (lambda x: x[:, None] + x[:, :, None], (X[:, :, :3].copy(),)),
    (lambda x: jnp.concatenate([x[:, ::2], x[:, 1:2, ::-1], jnp.ones_like(x)], 1), (X,)),
    (lambda x: jnp.concatenate(jnp.split(x, [1], 2)[::-1], 2), (X,)),
    (lambda x: lax.pad(x, 2.0, [(0, 0, 0), (1, 2, 0), (-1, 1, 0)]), (X,)),
    (lambda x: jnp.tile(x, (1, 2, 3)), (X,)),
    (lambda x: x.at[:, 1].add(2 * x[:, 0]), (X,)),
    (lambda x: jnp.swapaxes(x, 1, 2), (X,)),
    (lambda x: x @ TABLE[:4], (X,)),
    (lambda x: jnp.einsum("bij,ik->bkj", x, TABLE[:3]), (X,)),
    (lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (X, UNIT)),
    (lambda n: jnp.asarray(TABLE)[n], (WHOLE,)),
    (lambda n: jnp.asarray(TABLE)[n, n[:, :1] % 6], (WHOLE,)),
    (lambda n: jnp.asarray(TABLE).at[n].get(mode="clip"), (2 * WHOLE - 3,)),
    (lambda x: x[:, np.array([[2, 0], [1, 1]])], (X,)),
    (lambda x, n: jnp.take_along_axis(x, n % 3, axis=1, mode="clip"), (X, WHOLE)),
    *(
        (
            lambda x, strides=strides, padding=padding: lax.conv_general_dilated(
                x, KERNEL, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            (PICTURE,),
        )
        for strides, padding in (((2, 1), "VALID"), ((1, 2), "SAME"))
    ),
    (
        lambda x: lax.conv_general_dilated(
            x, KERNEL.transpose(3, 2, 0, 1), (1, 1), ((1, 0), (0, 2)), rhs_dilation=(2, 1)
        ),
        (np.moveaxis(PICTURE, 3, 1).copy(),),
    ),
    (lambda x, y: (lax.conj(lax.complex(x, y)) * lax.complex(y, jnp.ones_like(y))).imag, (X, UNIT)),
    (lambda x, y: jnp.where(x > 0, -lax.complex(x, y) * (1 + 2j), 3j)[:, 1:].sum(2).real, (X, UNIT)),
]


def converted(function: Callable[..., Any], arrays: tuple[np.ndarray, ...]) -> tuple[flat.Program, bytes]:
    row = [jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) for x in arrays]
    (rows,) = jax.export.symbolic_shape("rows")
    program = flat.for_rows(lambda *given: (function(*given),), row, rows)
    return program, onnx_graph.model(program, [f"in{i}" for i in range(len(row))], ["out"])


@pytest.mark.slow
def test_every_rule_does_what_jax_does(tmp_path: Path) -> None:
    tried = set()
    for i, (function, arrays) in enumerate(WHAT):
        program, body = converted(function, arrays)
        file = tmp_path / f"{i}.onnx"
        file.write_bytes(body)
        wanted = np.asarray(function(*map(jnp.asarray, arrays)))
        (found,) = onnx_graph.loaded(file)(*arrays)
        names = {operation.name for operation in program.operations}
        assert found.dtype == wanted.dtype, names
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6, err_msg=str(names))
        tried |= names
    assert tried == set(onnx_graph.RULES) | set(onnx_graph.COMPLEX)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: jnp.sin(x.astype(jnp.bfloat16)), "(op_type:Sin): input typestr: T, has unsupported type"),
        (lambda x: x.astype(jnp.uint16).argmax(1), "Could not find an implementation for ArgMax"),
        (jnp.sort, "the operation 'sort'"),
        (lambda x: x.at[:, np.array([0, 1])].add(1.0), "a scatter to more than one place"),
        (lambda x: lax.complex(x, x) / (1 + x), "'div' of complex numbers"),
        (lambda x: jnp.take(TABLE, x.astype(jnp.int32), axis=0), "a gather with values for indices outside"),
    ],
)
def test_an_operation_without_a_rule_is_named(function: Callable[..., Any], what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)) as raised:
        converted(function, (X,))
    assert "--to stablehlo" in str(raised.value)


# -- programs ----------------------------------------------------------------------------------------------


def test_what_is_fixed_is_computed_and_what_is_unused_left_away() -> None:
    def decide(x: Any) -> tuple[Any, ...]:
        noise = jax.random.normal(jax.random.key(0), x.shape)
        greedy = jnp.ones(x.shape[0], bool)
        scale = jnp.exp(jnp.arange(3.0))
        return (jnp.where(greedy[:, None], scale * x, x + noise),)

    (rows,) = jax.export.symbolic_shape("rows")
    program = flat.for_rows(decide, [jax.ShapeDtypeStruct((1, 3), np.float32)], rows)
    assert "mul" in {operation.name for operation in program.operations}
    kinds = {"mul", "broadcast_in_dim", "reshape", "squeeze"}
    assert {operation.name for operation in program.operations} <= kinds


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_written_out(reverse: bool) -> None:
    weights = jnp.asarray([1.0, 10.0, 100.0])

    def total(x: Any) -> tuple[Any, ...]:
        def one(carry: Any, now: Any) -> tuple[Any, Any]:
            return carry * 0.5 + now, carry

        return lax.scan(one, jnp.zeros(x.shape[0]), x.T * weights[:, None], reverse=reverse)

    x = np.arange(3.0, dtype=np.float32)[None]
    program = flat.settled(flat.flat(jax.make_jaxpr(total)(x)))
    assert "scan" not in {operation.name for operation in program.operations}
    for found, wanted in zip(flat._run(program, [x]), total(x), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_onnxruntime_is_told_to_report_nothing_before_it_is_imported() -> None:
    code = (
        "import os, sys, sparring.export.onnx_graph; "
        "assert 'onnxruntime' in sys.modules; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    )
    environment = {n: x for n, x in os.environ.items() if n != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr
