"""Pytrees as flat {path: array} mappings with readable paths, and back.

A path such as `train/params/actor/layers/0/weight` joins field names, keys and positions. The structure
is never stored: a template of the same structure gives it, so loading builds nothing that a file asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sparring.errors import CheckpointError, nearest

ROOT = "."


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf of a tree as a numpy array under its path."""
    arrays: dict[str, np.ndarray] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        path = path_of(keys)
        if path in arrays:
            raise CheckpointError(f"Two leaves have the same path {path!r}; rename one of the keys.")
        arrays[path] = _as_array(path, leaf)
    return arrays


def unflatten(template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A tree with the template's structure and the given leaves.

    The template holds arrays or `jax.ShapeDtypeStruct`s. Its numpy leaves come back as numpy arrays, all
    others as jax arrays on the default device.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    wanted = [(path_of(keys), leaf) for keys, leaf in leaves]
    _check_names([path for path, _ in wanted], arrays)
    fitted = [_fit(path, leaf, arrays[path]) for path, leaf in wanted]
    return jax.tree_util.tree_unflatten(structure, fitted)


def path_of(keys: tuple[Any, ...]) -> str:
    """A jax key path as text; `/` inside a key is escaped, so that different paths stay different."""
    return "/".join(_part(key) for key in keys) if keys else ROOT


def _part(key: Any) -> str:
    match key:
        case jax.tree_util.SequenceKey(idx=name):
            pass
        case jax.tree_util.GetAttrKey(name=name):
            pass
        case jax.tree_util.DictKey(key=name) | jax.tree_util.FlattenedIndexKey(key=name):
            pass
        case _:
            name = key
    text = str(name).replace("%", "%25").replace("/", "%2F")
    return text if text != "__metadata__" else "%5F_metadata__"  # reserved by safetensors


def _as_array(path: str, leaf: Any) -> np.ndarray:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        raise CheckpointError(
            f"{path!r} is a {type(leaf).__name__}, not an array. Make it an array, or mark the field static."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise CheckpointError(
            f"{path!r} is a typed random key, which is not stored. Derive keys from the seed, or store "
            "jax.random.key_data(key)."
        )
    return np.asarray(leaf)


def _check_names(wanted: list[str], arrays: Mapping[str, np.ndarray]) -> None:
    missing = [path for path in wanted if path not in arrays]
    extra = sorted(set(arrays) - set(wanted))
    if not missing and not extra:
        return
    problems = []
    if missing:
        problems.append(f"{_listing(missing)} expected but not in the file.{nearest(missing[0], extra)}")
    if extra:
        problems.append(f"{_listing(extra)} in the file but not expected.")
    raise CheckpointError(
        "The saved state has another structure: "
        + " ".join(problems)
        + " It was probably saved with other settings or another version."
    )


def _listing(paths: list[str], most: int = 3) -> str:
    shown = ", ".join(repr(path) for path in paths[:most])
    return shown if len(paths) <= most else f"{shown} and {len(paths) - most} more"


def _fit(path: str, leaf: Any, array: np.ndarray) -> Any:
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    if array.shape != shape or array.dtype.name != dtype.name:
        raise CheckpointError(
            f"{path!r} is {array.dtype.name}{list(array.shape)} in the file, but {dtype.name}{list(shape)} "
            "is expected. The state was saved for other spaces, sizes or settings."
        )
    if isinstance(leaf, (np.ndarray, np.generic)):
        return np.array(array)
    # A copy: the result may be donated to a compiled function, which must not own the caller's buffer.
    return jnp.array(array)
