"""Trees survive the trip through paths and safetensors; everything else is refused by name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.errors import CheckpointError
from sparring.runs import tensors
from sparring.runs.durable import write_file
from sparring.runs.tree import flatten, unflatten

DTYPES = [np.dtype(name) for name in tensors.CODES if name != "bfloat16"] + [np.dtype(ml_dtypes.bfloat16)]


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    rest: Any


class Layer(eqx.Module):
    weight: Any
    bias: Any


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if dtype == np.bool_:
        return np.frombuffer(bytes(b & 1 for b in raw), np.bool_).reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape)


def trees() -> st.SearchStrategy[Any]:
    names = st.text(max_size=4) | st.sampled_from(["a/b", "__metadata__", "%2F", "weight", "0"])
    return st.recursive(
        arrays() | st.none(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(names, inner, max_size=3)
            | st.builds(Pair, inner, inner)
            | st.builds(Frozen, inner, inner)
            | st.builds(Layer, inner, inner)
        ),
        max_leaves=8,
    )


def same(a: Any, b: Any) -> bool:
    """Equal structure, and leaves equal in dtype, shape and every bit (NaN included)."""
    left, structure = jax.tree_util.tree_flatten(a)
    right, other = jax.tree_util.tree_flatten(b)
    return structure == other and all(
        x.dtype.name == y.dtype.name
        and x.shape == y.shape
        and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(left, right, strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(tree=trees())
def test_a_tree_comes_back_bit_for_bit(tree: Any) -> None:
    flat = flatten(tree)
    data = b"".join(tensors.encode(flat))
    read = tensors.decode(data, "test")
    assert same(unflatten(tree, read), tree)
    # Written by us, read by the reference implementation.
    assert safetensors.deserialize(data) is not None


@settings(max_examples=50, deadline=None)
@given(flat=st.dictionaries(st.text(max_size=6).filter(lambda s: s != "__metadata__"), arrays(), max_size=5))
def test_files_are_plain_safetensors(
    flat: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("st") / "x.safetensors"
    write_file(path, tensors.encode(flat))
    theirs, ours = safetensors.numpy.load_file(path), tensors.read(path)
    assert same(theirs, flat)
    assert same(ours, flat)


def test_paths_are_readable() -> None:
    tree = {"train": Pair({"actor": [Layer(jnp.ones(2), None)]}, Frozen(np.zeros(()), (np.int8([1]),)))}
    assert list(flatten(tree)) == [
        "train/first/actor/0/weight",
        "train/second/value",
        "train/second/rest/0",
    ]
    assert list(flatten(np.zeros(3))) == ["."]


def test_shape_structs_give_the_structure_and_jax_arrays_come_back() -> None:
    def init() -> Any:
        return Pair(jnp.arange(3, dtype=jnp.uint32), {"w": jnp.ones((2, 2), jnp.bfloat16)})

    loaded = unflatten(jax.eval_shape(init), flatten(init()))
    assert same(loaded, init())
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(loaded))


def test_numpy_templates_stay_numpy_and_keep_64_bits() -> None:
    tree = {"n": np.asarray(2**40), "x": np.float64(0.1)}
    loaded = unflatten(tree, flatten(tree))
    assert isinstance(loaded["n"], np.ndarray)
    assert same(loaded, flatten(tree))


def test_strides_and_byte_order_do_not_matter() -> None:
    tree = {"t": np.arange(6.0).reshape(2, 3).T, "big": np.arange(3, dtype=">i4")}
    read = tensors.decode(b"".join(tensors.encode(flatten(tree))), "test")
    np.testing.assert_array_equal(read["t"], tree["t"])
    np.testing.assert_array_equal(read["big"], tree["big"])


def test_a_loaded_tree_shares_no_memory_with_the_file_buffer() -> None:
    flat = {"x": np.arange(4, dtype=np.float32)}
    loaded = unflatten({"x": jax.ShapeDtypeStruct((4,), jnp.float32)}, flat)
    flat["x"][:] = -1
    np.testing.assert_array_equal(loaded["x"], np.arange(4))


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (jax.random.key(0), ["'a/k'", "typed random key", "key_data"]),
        (3.0, ["'a/k'", "float", "not an array"]),
        (len, ["'a/k'", "static"]),
        ("text", ["'a/k'", "str"]),
    ],
)
def test_a_leaf_that_is_no_array_is_refused_by_name(leaf: Any, words: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        flatten({"a": {"k": leaf}})
    assert all(word in str(error.value) for word in words)


def test_an_unsupported_dtype_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'c' has dtype complex64"):
        list(tensors.encode({"c": np.zeros(2, np.complex64)}))


TEMPLATE = {"a": jax.ShapeDtypeStruct((2, 3), jnp.float32), "b": jax.ShapeDtypeStruct((), jnp.int32)}
GOOD = {"a": np.zeros((2, 3), np.float32), "b": np.int32(1)[...]}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": GOOD["a"]}, ["'b'", "expected but not in the file"]),
        ({**GOOD, "c": GOOD["a"]}, ["'c'", "in the file but not expected"]),
        ({**GOOD, "a": np.zeros((3, 2), np.float32)}, ["'a'", "float32[3, 2]", "float32[2, 3]"]),
        ({**GOOD, "b": np.float32(1)[...]}, ["'b'", "float32[]", "int32[]"]),
    ],
)
def test_a_mismatch_names_path_found_and_expected(arrays: Any, words: list[str]) -> None:
    with pytest.raises(CheckpointError) as error:
        unflatten(TEMPLATE, arrays)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_garbage_is_not_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"\x80\x04junk" * 10)
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        tensors.read(path)
    with pytest.raises(CheckpointError, match="not a readable safetensors"):
        tensors.decode(path.read_bytes(), "x")
