"""A policy's program as a flat list of operations on any number of rows, with all that is fixed computed.

Other formats than XLA's have neither calls inside calls nor random draws, and a deterministic decision needs
none: calls are written out and loops of a known length unrolled, what depends on no input is computed now, a
choice that is fixed is made now, and what nothing depends on is left away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
from jax.extend import core

CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "remat2": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Operations that only call another program, and where they keep it."""


class Value:
    """One array of a program; `known` where it depends on no input and has been computed."""

    __slots__ = ("aval", "known")

    def __init__(self, aval: Any, known: Any = None) -> None:
        self.aval = aval
        self.known = known


class Operation(NamedTuple):
    """outputs = function(*inputs)."""

    name: str
    params: dict[str, Any]
    function: Callable[..., Any]
    inputs: list[Value]
    outputs: list[Value]


class Program(NamedTuple):
    """Operations in order."""

    inputs: list[Value]
    operations: list[Operation]
    outputs: list[Value]


def for_rows(function: Callable[..., tuple[Any, ...]], row: Sequence[Any], rows: Any) -> Program:
    """The program of a function of one row, for `rows` of them (a number, or a symbol of jax.export's).

    `row` has the shapes and dtypes of the function's arguments, whose first axis is 1.
    """
    one = settled(flat(jax.make_jaxpr(function)(*row)))

    def each(*arrays: Any) -> tuple[Any, ...]:
        made = jax.vmap(lambda *given: _run(one, [x[None] for x in given]))(*arrays)
        return tuple(jax.lax.squeeze(x, (1,)) for x in made)

    shapes = [jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype) for x in row]
    return settled(flat(jax.make_jaxpr(each)(*shapes)))


def flat(closed: core.ClosedJaxpr) -> Program:
    """The program with its calls written out and its loops unrolled."""
    operations: list[Operation] = []
    inputs = [Value(var.aval) for var in closed.jaxpr.invars]
    outputs = _inline(closed.jaxpr, closed.consts, inputs, operations)
    return Program(inputs, operations, outputs)


def _inline(
    jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value], operations: list[Operation]
) -> list[Value]:
    """Appends the operations of a (sub)program and returns its outputs."""
    values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, const in zip(jaxpr.constvars, consts, strict=True):
        values[var] = Value(var.aval, const)

    def read(atom: Any) -> Value:
        return Value(atom.aval, atom.val) if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        name, given = eqn.primitive.name, [read(atom) for atom in eqn.invars]
        if name in CALLS:
            inner = eqn.params[CALLS[name]]
            made = _inline(*_opened(inner), given, operations)
        elif name == "scan":
            made = _unroll(eqn.params, given, operations)
        else:
            made = [Value(var.aval) for var in eqn.outvars]
            operations.append(Operation(name, eqn.params, _bind(eqn.primitive, eqn.params), given, made))
        values.update(zip(eqn.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _opened(inner: Any) -> tuple[Any, Sequence[Any]]:
    return (inner.jaxpr, inner.consts) if isinstance(inner, core.ClosedJaxpr) else (inner, ())


def _bind(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    def bind(*arrays: Any) -> list[Any]:
        made = primitive.bind(*arrays, **params)
        return list(made) if primitive.multiple_results else [made]

    return bind


def _unroll(params: dict[str, Any], given: list[Value], operations: list[Operation]) -> list[Value]:
    """The steps of a scan one after the other."""
    body, consts = _opened(params["jaxpr"])
    fixed, carried, length = params["num_consts"], params["num_carry"], params["length"]
    same, state, sequences = given[:fixed], given[fixed : fixed + carried], given[fixed + carried :]
    kept: list[list[Value]] = []
    times = range(length)
    for t in reversed(times) if params["reverse"] else times:
        now = []
        for sequence, var in zip(sequences, body.invars[fixed + carried :], strict=True):
            now.append(Value(var.aval))

            def at(x: Any, t: int = t) -> list[Any]:
                return [jax.lax.index_in_dim(x, t, keepdims=False)]

            operations.append(Operation("step of scan", {}, at, [sequence], now[-1:]))
        made = _inline(body, consts, [*same, *state, *now], operations)
        state = made[:carried]
        kept.append(made[carried:])
    if params["reverse"]:
        kept.reverse()
    stacked = []
    for i, var in enumerate(body.outvars[carried:]):
        stacked.append(Value(jax.core.ShapedArray((length, *var.aval.shape), var.aval.dtype)))
        operations.append(Operation("steps of scan", {}, _stack, [step[i] for step in kept], stacked[-1:]))
    return [*state, *stacked]


def _stack(*arrays: Any) -> list[Any]:
    return [jax.lax.concatenate([jax.lax.expand_dims(x, (0,)) for x in arrays], 0)]


def settled(program: Program) -> Program:
    """The program without choices that are fixed, and without what neither they nor the outputs need."""
    maker = {value: op for op in program.operations for value in op.outputs}
    fixed: set[Value] = set()
    same: dict[Value, Value] = {}

    def is_fixed(value: Value) -> bool:
        return value.known is not None or value in fixed

    operations = []
    for before in program.operations:
        op = before._replace(inputs=[same.get(value, value) for value in before.inputs])
        maker.update((value, op) for value in op.outputs)
        if all(map(is_fixed, op.inputs)) and all(map(_of_known_shape, op.outputs)):
            fixed.update(op.outputs)
        elif op.name == "select_n" and is_fixed(op.inputs[0]):
            which = np.asarray(_computed(op.inputs[0], maker))
            if (which == which.flat[0]).all():
                same[op.outputs[0]] = op.inputs[1 + int(which.flat[0])]
        operations.append(op)
    outputs = [same.get(value, value) for value in program.outputs]
    needed = set(outputs)
    live = []
    for op in reversed(operations):
        if any(value in needed for value in op.outputs):
            needed.update(op.inputs)
            live.append(op)
    moving = []
    for op in reversed(live):
        if is_fixed(op.outputs[0]):
            _computed(op.outputs[0], maker)
        else:
            moving.append(op)
    return Program(program.inputs, moving, outputs)


def _of_known_shape(value: Value) -> bool:
    return not any(map(jax.export.is_symbolic_dim, value.aval.shape))


def _computed(value: Value, maker: dict[Value, Operation]) -> Any:
    """A value that depends on no input."""
    if value.known is None:
        op = maker[value]
        given = [_computed(x, maker) for x in op.inputs]
        with jax.ensure_compile_time_eval():
            made = op.function(*given)
        for output, array in zip(op.outputs, made, strict=True):
            output.known = array
    return value.known


def _run(program: Program, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Traces the program's operations."""
    found = dict(zip(program.inputs, arrays, strict=True))

    def read(value: Value) -> Any:
        return found.get(value, value.known)

    for op in program.operations:
        made = op.function(*map(read, op.inputs))
        found.update(zip(op.outputs, made, strict=True))
    return tuple(map(read, program.outputs))
