"""A sum tree over arrays: draws leaves in proportion to their mass, in logarithmic time, as pure functions.

What is exact: every inner node is the float32 sum of its children, added from left to right, and is computed
again from all of them whenever one changes. So the tree is a function of its leaves alone, bit for bit: no
history of changes leaves a trace in it, and a leaf set to zero takes all of its mass away.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sparring.ops.keys import uniform_pair
from sparring.types import Key

FAN_OUT = 8
"""Children of a node: of 4, 8, 16 and 32 the fastest on a CPU at 10^6 leaves."""


class SumTree(NamedTuple):
    """Non-negative leaves and the sums over groups of them, level by level up to one group."""

    levels: tuple[Float[Array, " level"], ...]
    """leaves first; every level is padded with zeros to whole groups"""

    @property
    def leaves(self) -> Float[Array, " leaves"]:
        """At least as many as asked for."""
        return self.levels[0]


def zeros(capacity: int) -> SumTree:
    """A tree without mass, of `capacity` leaves or a few more."""
    levels = [jnp.zeros(_padded(capacity))]
    while levels[-1].shape[0] > FAN_OUT:
        levels.append(jnp.zeros(_padded(levels[-1].shape[0] // FAN_OUT)))
    return SumTree(tuple(levels))


def build(leaves: Float[Array, " capacity"]) -> SumTree:
    """The tree of these leaves."""
    levels = [jnp.pad(leaves, (0, _padded(leaves.shape[0]) - leaves.shape[0]))]
    while levels[-1].shape[0] > FAN_OUT:
        levels.append(_parents(levels[-1]))
    return SumTree(tuple(levels))


def total(tree: SumTree) -> Float[Array, ""]:
    """The mass of all leaves."""
    return _running_sums(tree.levels[-1])[-1]


def at(tree: SumTree, index: Int[Array, "*K"]) -> Float[Array, "*K"]:
    """The mass of these leaves; 0 for an index outside the tree."""
    return tree.leaves.at[_inside(tree, index)].get(mode="fill", fill_value=0.0)


def put(tree: SumTree, index: Int[Array, " K"], value: Float[Array, " K"]) -> SumTree:
    """The tree with new values at these leaves.

    An index outside the tree (negative, or too large) is ignored; of several values for one leaf the largest
    counts, in whatever order they come.
    """
    index = _inside(tree, index)
    leaves = tree.leaves.at[index].set(0.0, mode="drop").at[index].max(value, mode="drop")
    levels = [leaves]
    for old in tree.levels[1:]:
        below = levels[-1]
        index = index // FAN_OUT  # what was outside stays outside
        if old.shape[0] <= index.shape[0]:  # then all sums are less work than those that may have changed
            levels.append(_parents(below))
            continue
        groups = below.reshape(-1, FAN_OUT).at[index].get(mode="clip")
        levels.append(old.at[index].set(_running_sums(groups)[:, -1], mode="drop"))
    return SumTree(tuple(levels))


def exchange(
    tree: SumTree, index: Int[Array, " K"], value: Float[Array, " K"]
) -> tuple[Float[Array, " K"], SumTree]:
    """The values that were at these leaves, and the tree with the new ones (`put`).

    The write waits for the read, which it would not do if they were apart; then XLA would copy the tree.
    """
    old = at(tree, index)
    return old, put(tree, jnp.where(old >= 0, index, -1), value)


def find(tree: SumTree, mass: Float[Array, " K"], rest: Float[Array, " K"] | float = 0.0) -> Int[Array, " K"]:
    """The leaf in which each point of [0, total] lies, the leaves being laid end to end.

    Never a leaf without mass, unless the tree has none: a point on a border belongs to the leaf on its
    right, one beyond the total to the last that has mass. Borders are as exact as float32 sums. `rest` is the
    part of a point that is too small to be added to `mass`; it counts half-way down, where little is left.
    """
    node = jnp.zeros(mass.shape, jnp.int32)
    child = jnp.arange(FAN_OUT, dtype=jnp.int32)
    depth = len(tree.levels)
    for level in reversed(range(depth)):
        if level == depth // 2 - 1:
            mass = mass + rest
        children = tree.levels[level].reshape(-1, FAN_OUT)[node]
        sums = _running_sums(children)
        some = children > 0
        beyond = jnp.where(some & (sums > mass[:, None]), child, FAN_OUT)
        last = jnp.max(jnp.where(some, child, 0), axis=1)
        picked = jnp.minimum(jnp.min(beyond, axis=1), last)
        before = jnp.max(jnp.where(child < picked[:, None], sums, 0.0), axis=1)
        mass = mass - before
        node = node * FAN_OUT + picked
    return node


def draw(tree: SumTree, key: Key, count: int) -> Int[Array, " count"]:
    """Leaves drawn in proportion to their mass, one from each of `count` equal parts of it.

    Stratified as in Schaul et al. (2016, appendix B.2.1). A float32 point on the whole mass has 2^24 places,
    too few for millions of leaves to be equally likely, so a second random number follows below its rounding.
    """
    u = uniform_pair(key, count)
    whole = total(tree)
    mass = (jnp.arange(count) + u[:, 0]) / count * whole
    return find(tree, mass, (u[:, 1] - 0.5) * (2.0**-24 * whole))


def _padded(count: int) -> int:
    """The count rounded up to whole groups."""
    return -(-count // FAN_OUT) * FAN_OUT


def _inside(tree: SumTree, index: Int[Array, "*K"]) -> Int[Array, "*K"]:
    """The index, or one above everything where it is negative or no leaf."""
    above = FAN_OUT ** len(tree.levels)
    return jnp.where((index >= 0) & (index < tree.leaves.shape[0]), index, above)


def _running_sums(x: Float[Array, "*K F"]) -> Float[Array, "*K F"]:
    """Sums of the first 1, 2, … of a group, each one addition after the one before it.

    Written out, because a library's scan may add in another order: then sums could fall from one to the next,
    and the last could differ from the parent.
    """
    sums = [x[..., 0]]
    for i in range(1, x.shape[-1]):
        sums.append(sums[-1] + x[..., i])
    return jnp.stack(sums, axis=-1)


def _parents(level: Float[Array, " below"]) -> Float[Array, " above"]:
    """The sums of all groups of a level."""
    sums = _running_sums(level.reshape(-1, FAN_OUT))[:, -1]
    return jnp.pad(sums, (0, _padded(sums.shape[0]) - sums.shape[0]))
