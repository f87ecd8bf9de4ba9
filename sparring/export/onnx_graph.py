"""A flat program as an ONNX graph: one small rule per operation of jax's, in `RULES`.

ONNX has no complex numbers; they are carried as two arrays. The number of rows is a dimension without a size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.export
import numpy as np

from sparring.errors import ConfigError, missing_extra
from sparring.export.flat import Operation, Program, Value

# onnxruntime 1.31 reports to its maker what it runs; it looks at this once, when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
try:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper
    from onnxruntime.capi import onnxruntime_pybind11_state as refusals
except ImportError as error:
    raise missing_extra(error.name or "onnx", "onnx") from error
onnxruntime.disable_telemetry_events()

REFUSALS = (
    *(onnx.checker.ValidationError, onnx.shape_inference.InferenceError),
    *(refusals.Fail, refusals.InvalidGraph, refusals.NotImplemented),
)
INSTEAD = "Use --to stablehlo, which holds the same program."
OPSET = 18
IR_VERSION = 8
"""of the time of that opset: runtimes since the end of 2022 read it"""


class Pair(NamedTuple):
    """A complex array."""

    re: str
    im: str


Rule = Callable[["Graph", Operation, list[str]], "str | list[str]"]


def model(program: Program, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    """The serialised and checked ONNX model of a program, with those names of its inputs and outputs."""
    graph = Graph()
    graph.names.update(zip(program.inputs, inputs, strict=True))
    graph.rows_of = inputs[0]
    for operation in program.operations:
        graph.convert(operation)
    for name, value in zip(outputs, program.outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [graph.read(value)], [name]))
    made = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "policy",
            [_port(name, value) for name, value in zip(inputs, program.inputs, strict=True)],
            [_port(name, value) for name, value in zip(outputs, program.outputs, strict=True)],
            graph.constants,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="sparring",
    )
    body: bytes = made.SerializeToString()
    try:
        onnx.checker.check_model(made, full_check=True)
        _session(body)
    except REFUSALS as error:
        raise ConfigError(
            f"This policy does not work in ONNX: {str(error).splitlines()[0]}. {INSTEAD}"
        ) from error
    return body


def loaded(path: Path) -> Callable[..., list[np.ndarray]]:
    """The model of a file as a function of its inputs in order, run by onnxruntime on the CPU."""
    session = _session(path)
    names = [port.name for port in session.get_inputs()]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))


def _session(source: Path | bytes) -> Any:
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def _port(name: str, value: Value) -> Any:
    shape = [str(size) if jax.export.is_symbolic_dim(size) else int(size) for size in value.aval.shape]
    return helper.make_tensor_value_info(name, _type(value.aval.dtype), shape)


def _type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def unknown(what: str) -> ConfigError:
    """The error for a policy that cannot become ONNX."""
    return ConfigError(f"The export to ONNX does not know {what}, which this policy uses. {INSTEAD}")


class Graph:
    """Nodes so far, and what the values of the program are called among them."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.names: dict[Value, Any] = {}
        self.rows_of = ""
        """an input, whose first axis says how many rows there are"""

    def convert(self, operation: Operation) -> None:
        """Adds the nodes of one operation."""
        name = operation.name
        given = [self.read(value) for value in operation.inputs]
        made: Any
        paired = any(isinstance(x, Pair) for x in given)
        if name == "complex" or (paired and name in COMPLEX):
            made = COMPLEX[name](self, *given)
        elif paired:
            if name not in PART_BY_PART:
                raise unknown(f"{name!r} of complex numbers")
            parts = [[x[i] if isinstance(x, Pair) else x for x in given] for i in (0, 1)]
            re, im = (_several(RULES[name](self, operation, part)) for part in parts)
            made = [Pair(*both) for both in zip(re, im, strict=True)]
        elif name in RULES:
            made = RULES[name](self, operation, given)
        else:
            raise unknown(f"the operation {name!r}")
        self.names.update(zip(operation.outputs, _several(made), strict=True))

    def read(self, value: Value) -> Any:
        """The name of a value; a constant is stored when it is first read."""
        if value not in self.names:
            array = np.asarray(value.known, value.aval.dtype)
            if np.iscomplexobj(array):
                self.names[value] = Pair(self.constant(array.real), self.constant(array.imag))
            else:
                self.names[value] = self.constant(array)
        return self.names[value]

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; the name of its output, or their names where there are several."""
        names = [f"{kind}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names if outputs > 1 else names[0]

    def constant(self, array: Any, dtype: Any = None) -> str:
        """A stored array."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(array, dtype, order="C"), name))
        return name

    def integers(self, *numbers: Any) -> str:
        """A stored vector of int64, as shapes and axes are given."""
        return self.constant([int(number) for number in numbers], np.int64)

    def cast(self, x: str, dtype: Any) -> str:
        name: str = self.add("Cast", x, to=_type(dtype))
        return name

    def turned(self, x: str, order: Sequence[int]) -> str:
        """Axes in another order."""
        order = [int(axis) for axis in order]
        return x if order == sorted(order) else self.add("Transpose", x, perm=order)

    def reshaped(self, x: str, shape: Sequence[Any]) -> str:
        """Another shape, in which at most one size is not known."""
        sizes = [-1 if jax.export.is_symbolic_dim(size) else size for size in shape]
        name: str = self.add("Reshape", x, self.integers(*sizes))
        return name

    def spread(self, x: str, shape: Sequence[Any]) -> str:
        """Axes of size 1 repeated."""
        if not any(map(jax.export.is_symbolic_dim, shape)):
            sizes = self.integers(*shape)
        else:
            rows = self.add("Shape", self.rows_of, start=0, end=1)
            parts = [rows if jax.export.is_symbolic_dim(size) else self.integers(size) for size in shape]
            sizes = self.add("Concat", *parts, axis=0)
        name: str = self.add("Expand", x, sizes)
        return name


def _several(made: Any) -> list[Any]:
    return made if isinstance(made, list) else [made]


def _shape(operation: Operation, i: int = 0) -> tuple[Any, ...]:
    return tuple(operation.inputs[i].aval.shape)


def _made(operation: Operation) -> Any:
    return operation.outputs[0].aval


# -- rules -------------------------------------------------------------------------------------------------


def _as(kind: str, **attributes: Any) -> Rule:
    """ONNX has the same operation."""
    return lambda graph, operation, given: graph.add(kind, *given, **attributes)


def _same(graph: Graph, operation: Operation, given: list[str]) -> list[str]:
    return given


def _logic(kind: str) -> Rule:
    """And, Or, Xor, Not of truth values or of bits."""

    def rule(graph: Graph, operation: Operation, given: list[str]) -> str:
        truth = _made(operation).dtype == np.bool_
        return graph.add(kind if truth else f"Bitwise{kind}", *given)

    return rule


def _reduce(kind: str, through: Any = None) -> Rule:
    """A reduction over axes; truth values are reduced as numbers."""

    def rule(graph: Graph, operation: Operation, given: list[str]) -> str:
        x = given[0] if through is None else graph.cast(given[0], through)
        made = graph.add(kind, x, graph.integers(*operation.params["axes"]), keepdims=0)
        return made if through is None else graph.cast(made, np.bool_)

    return rule


def _arg(kind: str) -> Rule:
    def rule(graph: Graph, operation: Operation, given: list[str]) -> str:
        (axis,) = operation.params["axes"]
        return graph.cast(graph.add(kind, *given, axis=int(axis), keepdims=0), _made(operation).dtype)

    return rule


def _not_equal(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Not", graph.add("Equal", *given))


def _square(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Mul", given[0], given[0])


def _integer_pow(graph: Graph, operation: Operation, given: list[str]) -> str:
    power = operation.params["y"]
    if power == 0:
        return graph.spread(graph.constant(1, _made(operation).dtype), _made(operation).shape)
    made = given[0]
    for _ in range(abs(power) - 1):
        made = graph.add("Mul", made, given[0])
    return made if power > 0 else graph.add("Reciprocal", made)


def _rsqrt(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Reciprocal", graph.add("Sqrt", *given))


def _expm1(graph: Graph, operation: Operation, given: list[str]) -> str:
    """tanh(x / 2) (exp(x) + 1), which keeps its digits near 0."""
    dtype = _made(operation).dtype
    half = graph.add("Mul", given[0], graph.constant(0.5, dtype))
    above = graph.add("Add", graph.add("Exp", *given), graph.constant(1, dtype))
    return graph.add("Mul", graph.add("Tanh", half), above)


def _log1p(graph: Graph, operation: Operation, given: list[str]) -> str:
    """log(u) x / (u - 1) with u = 1 + x rounded, which keeps its digits near 0; there u is 1 and it is x."""
    (x,), one = given, graph.constant(1, _made(operation).dtype)
    u = graph.add("Add", x, one)
    around = graph.add("Mul", graph.add("Log", u), graph.add("Div", x, graph.add("Sub", u, one)))
    return graph.add("Where", graph.add("Equal", u, one), x, around)


def _is_finite(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Not", graph.add("Or", graph.add("IsInf", *given), graph.add("IsNaN", *given)))


def _clamp(graph: Graph, operation: Operation, given: list[str]) -> str:
    low, x, high = given
    return graph.add("Min", graph.add("Max", x, low), high)


def _select(graph: Graph, operation: Operation, given: list[str]) -> str:
    which, made, *others = given
    numbered = operation.inputs[0].aval.dtype != np.bool_
    for i, other in enumerate(others, start=1):
        here = graph.add("Equal", which, graph.constant(i, np.int32)) if numbered else which
        made = _where(graph, here, other, made, _made(operation).dtype)
    return made


def _where(graph: Graph, here: str, yes: str, no: str, dtype: Any) -> str:
    if dtype != np.bool_:
        return graph.add("Where", here, yes, no)
    # onnxruntime has no Where for truth values.
    there, elsewhere = graph.add("And", here, yes), graph.add("And", graph.add("Not", here), no)
    return graph.add("Or", there, elsewhere)


def _convert(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.cast(given[0], _made(operation).dtype)


def _round(graph: Graph, operation: Operation, given: list[str]) -> str:
    if int(operation.params["rounding_method"]) != 1:
        raise unknown("rounding of halves away from zero")
    return graph.add("Round", *given)


def _reshape(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.reshaped(given[0], _made(operation).shape)


def _broadcast(graph: Graph, operation: Operation, given: list[str]) -> str:
    shape, axes = operation.params["shape"], operation.params["broadcast_dimensions"]
    narrow: list[Any] = [1] * len(shape)
    for axis, size in zip(axes, _shape(operation), strict=True):
        narrow[axis] = size
    x = given[0] if tuple(narrow) == _shape(operation) else graph.reshaped(given[0], narrow)
    return x if tuple(narrow) == tuple(shape) else graph.spread(x, shape)


def _transpose(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.turned(given[0], operation.params["permutation"])


def _concatenate(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Concat", *given, axis=int(operation.params["dimension"]))


def _stack(graph: Graph, operation: Operation, given: list[str]) -> str:
    axis = int(operation.params["axis"])
    return graph.add("Concat", *(graph.add("Unsqueeze", x, graph.integers(axis)) for x in given), axis=axis)


def _split(graph: Graph, operation: Operation, given: list[str]) -> list[str]:
    sizes = operation.params["sizes"]
    axis = int(operation.params["axis"])
    return _several(graph.add("Split", given[0], graph.integers(*sizes), outputs=len(sizes), axis=axis))


def _slice(graph: Graph, operation: Operation, given: list[str]) -> str:
    shape, params = _shape(operation), operation.params
    strides = params["strides"] or (1,) * len(shape)
    ranges = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    cut = [(axis, *part) for axis, part in enumerate(ranges) if part != (0, shape[axis], 1)]
    if any(jax.export.is_symbolic_dim(number) for part in cut for number in part):
        raise unknown("a part of the rows")
    if not cut:
        return given[0]
    axes, starts, ends, steps = (graph.integers(*column) for column in zip(*cut, strict=True))
    return graph.add("Slice", given[0], starts, ends, axes, steps)


def _reverse(graph: Graph, operation: Operation, given: list[str]) -> str:
    axes = operation.params["dimensions"]
    last, before_first, back = ([number] * len(axes) for number in (-1, np.iinfo(np.int64).min, -1))
    return graph.add("Slice", given[0], *(graph.integers(*x) for x in (last, before_first, axes, back)))


def _pad(graph: Graph, operation: Operation, given: list[str]) -> str:
    low, high, between = zip(*operation.params["padding_config"], strict=True)
    if any(between):
        raise unknown("padding between elements")
    return graph.add("Pad", given[0], graph.integers(*low, *high), given[1])


def _tile(graph: Graph, operation: Operation, given: list[str]) -> str:
    return graph.add("Tile", given[0], graph.integers(*operation.params["reps"]))


def _cumsum(graph: Graph, operation: Operation, given: list[str]) -> str:
    axis = graph.constant(int(operation.params["axis"]), np.int64)
    return graph.add("CumSum", given[0], axis, reverse=int(operation.params["reverse"]))


def _dot(graph: Graph, operation: Operation, given: list[str]) -> str:
    """MatMul where the last axis meets the first of a matrix, else Einsum."""
    (left, right), (left_batch, right_batch) = operation.params["dimension_numbers"]
    x, y = _shape(operation, 0), _shape(operation, 1)
    made = _made(operation).dtype
    given = [
        name if value.aval.dtype == made else graph.cast(name, made)
        for name, value in zip(given, operation.inputs, strict=True)
    ]
    if not left_batch and len(y) == 2 and tuple(right) == (0,) and tuple(left) == (len(x) - 1,):
        return graph.add("MatMul", *given)
    letters = "abcdefghijklmnopqrstuvwxyz"
    one = list(letters[: len(x)])
    other = list(letters[len(x) : len(x) + len(y)])
    for i, j in (*zip(left, right, strict=True), *zip(left_batch, right_batch, strict=True)):
        other[j] = one[i]
    shared = [one[i] for i in left_batch]
    free = [a for i, a in enumerate(one) if i not in (*left, *left_batch)]
    free += [a for j, a in enumerate(other) if j not in (*right, *right_batch)]
    return graph.add("Einsum", *given, equation=f"{''.join(one)},{''.join(other)}->{''.join(shared + free)}")


def _convolution(graph: Graph, operation: Operation, given: list[str]) -> str:
    params = operation.params
    if params["batch_group_count"] != 1 or any(size != 1 for size in params["lhs_dilation"]):
        raise unknown("a transposed convolution or groups of the batch")
    axes = params["dimension_numbers"]
    low, high = zip(*params["padding"], strict=True)
    made = graph.add(
        "Conv",
        graph.turned(given[0], axes.lhs_spec),
        graph.turned(given[1], axes.rhs_spec),
        strides=[int(size) for size in params["window_strides"]],
        dilations=[int(size) for size in params["rhs_dilation"]],
        pads=[int(size) for size in (*low, *high)],
        group=int(params["feature_group_count"]),
    )
    return graph.turned(made, np.argsort(axes.out_spec).tolist())


def _gather(graph: Graph, operation: Operation, given: list[str]) -> str:
    """Entries or whole stretches of axes by GatherND, its axes in the order that jax gives them."""
    axes, sizes = operation.params["dimension_numbers"], operation.params["slice_sizes"]
    table, index = _shape(operation, 0), _shape(operation, 1)
    mode = operation.params["mode"]
    along, by, chosen = axes.operand_batching_dims, axes.start_indices_batching_dims, axes.start_index_map
    rest = [axis for axis in range(len(table)) if axis not in (*along, *chosen)]
    if any(sizes[axis] != 1 for axis in chosen) or any(sizes[axis] != table[axis] for axis in rest):
        raise unknown("a gather of parts of axes")
    if mode not in (jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS, jax.lax.GatherScatterMode.CLIP):
        raise unknown("a gather with values for indices outside")
    others = [axis for axis in range(len(index) - 1) if axis not in by]
    place = graph.cast(graph.turned(given[1], [*by, *others, len(index) - 1]), np.int64)
    if mode == jax.lax.GatherScatterMode.CLIP:
        place = graph.add("Max", place, graph.integers(0))
        place = graph.add("Min", place, graph.integers(*(table[axis] - 1 for axis in chosen)))
    found = graph.add(
        "GatherND", graph.turned(given[0], [*along, *chosen, *rest]), place, batch_dims=len(along)
    )
    # Made so far: [*by, *others, *rest]. Wanted: axes of the table at offset_dims, of the index elsewhere.
    order: list[int] = []
    kept = iter(axis for axis in range(len(table)) if axis not in (*along, *axes.collapsed_slice_dims))
    looked = iter(range(len(index) - 1))
    now = [("index", axis) for axis in (*by, *others)] + [("table", axis) for axis in rest]
    for place_ in range(len(_made(operation).shape)):
        axis = ("table", next(kept)) if place_ in axes.offset_dims else ("index", next(looked))
        if axis in now:
            order.append(now.index(axis))
    found = graph.turned(found, order)
    return (
        found if len(order) == len(_made(operation).shape) else graph.reshaped(found, _made(operation).shape)
    )


def _scatter_add(graph: Graph, operation: Operation, given: list[str]) -> str:
    """Something added at one place of one axis."""
    axes, (x, _, update) = operation.params["dimension_numbers"], given
    shape, index = _shape(operation), operation.inputs[1]
    alone = axes.inserted_window_dims == axes.scatter_dims_to_operand_dims
    if index.known is None or np.size(index.known) != 1 or not alone:
        raise unknown("a scatter to more than one place")
    (axis,), place = axes.inserted_window_dims, int(np.asarray(index.known).item())
    if not 0 <= place < shape[axis]:
        raise unknown("a scatter to a place outside")
    before, after = [0] * len(shape), [0] * len(shape)
    before[axis], after[axis] = place, shape[axis] - 1 - place
    update = graph.add("Unsqueeze", update, graph.integers(axis))
    return graph.add("Add", x, graph.add("Pad", update, graph.integers(*before, *after)))


ALIKE = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "add": "Add",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "div": "Div",
    "eq": "Equal",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "ge": "GreaterOrEqual",
    "gt": "Greater",
    "le": "LessOrEqual",
    "log": "Log",
    "logistic": "Sigmoid",
    "lt": "Less",
    "max": "Max",
    "min": "Min",
    "mul": "Mul",
    "neg": "Neg",
    "pow": "Pow",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "sub": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}
"""Operations that ONNX has too."""

RULES: dict[str, Rule] = {
    **{name: _as(kind) for name, kind in ALIKE.items()},
    "and": _logic("And"),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "conv_general_dilated": _convolution,
    "convert_element_type": _convert,
    "copy": _same,
    "cumsum": _cumsum,
    "dot_general": _dot,
    "expm1": _expm1,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "is_finite": _is_finite,
    "log1p": _log1p,
    "ne": _not_equal,
    "not": _logic("Not"),
    "optimization_barrier": _same,
    "or": _logic("Or"),
    "pad": _pad,
    "reduce_and": _reduce("ReduceMin", through=np.int32),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_or": _reduce("ReduceMax", through=np.int32),
    "reduce_prod": _reduce("ReduceProd"),
    "reduce_sum": _reduce("ReduceSum"),
    "rem": _as("Mod", fmod=1),
    "reshape": _reshape,
    "rev": _reverse,
    "round": _round,
    "rsqrt": _rsqrt,
    "scatter-add": _scatter_add,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": _square,
    "squeeze": _reshape,
    "stack": _stack,
    "stop_gradient": _same,
    "tile": _tile,
    "transpose": _transpose,
    "xor": _logic("Xor"),
}


# -- complex numbers ---------------------------------------------------------------------------------------


def _product(graph: Graph, x: Pair, y: Pair) -> Pair:
    def times(a: str, b: str) -> str:
        return graph.add("Mul", a, b)

    return Pair(
        graph.add("Sub", times(x.re, y.re), times(x.im, y.im)),
        graph.add("Add", times(x.re, y.im), times(x.im, y.re)),
    )


COMPLEX: dict[str, Callable[..., str | Pair]] = {
    "complex": lambda graph, re, im: Pair(re, im),
    "conj": lambda graph, x: Pair(x.re, graph.add("Neg", x.im)),
    "imag": lambda graph, x: x.im,
    "mul": _product,
    "real": lambda graph, x: x.re,
}
PART_BY_PART = {
    *("add", "broadcast_in_dim", "concatenate", "copy", "neg", "pad", "reduce_sum", "reshape", "rev"),
    *("scatter-add", "select_n", "slice", "split", "squeeze", "stack", "stop_gradient", "sub", "transpose"),
}
"""Operations that do the same to real and imaginary parts."""
