"""Which iterations are looked at one by one."""

from __future__ import annotations

import numpy as np

from sparring.session import doubtful, measured


def test_only_iterations_with_odd_numbers_are_doubtful() -> None:
    nan = float("nan")
    trace = {
        "train/loss": np.float32([1, 2, nan, 4]),
        "train/n_updates": np.int32([1, 2, 3, 4]),
        "stats/dead_units": np.float32([nan, nan, 0.1, nan]),  # not looked at in every iteration
        "env/height_last": np.float32([nan, 1, 1, 1]),  # no episode had ended
    }
    assert doubtful(trace, 11) == [13]
    assert measured({name: float(x[0]) for name, x in trace.items()}) == {
        "train/loss": 1.0,
        "train/n_updates": 1.0,
    }


def test_an_infinite_number_is_doubtful_and_nothing_is_not() -> None:
    assert doubtful({"train/loss": np.float32([np.inf, 0, -np.inf])}, 1) == [1, 3]
    assert doubtful({}, 1) == []


def test_losses_that_are_squares_have_roots() -> None:
    losses = {"train/critic_loss": 9.0, "train/q_loss_2": 4.0, "train/pi_loss_2": 4.0, "train/loss": 4.0}
    assert measured(losses) == {**losses, "train/critic_loss_root": 3.0, "train/q_loss_2_root": 2.0}
    assert "train/critic_loss_root" not in measured({**losses, "train/n_updates": 0.0})
