"""Families of behaviours that others have published, as values for `Coordinate.discrete`."""

from __future__ import annotations

import math

from sparring.errors import ConfigError


def ngu_betas(count: int = 32, largest: float = 0.3) -> tuple[float, ...]:
    """Weights of an intrinsic reward, NGU's β_0 … β_{N-1} (Badia et al. 2020): 0, a sigmoid, the largest."""
    _at_least_three(count)
    middle = (10.0 * (2 * j - (count - 2)) / (count - 2) for j in range(1, count - 1))
    return (0.0, *(largest / (1.0 + math.exp(-x)) for x in middle), largest)


def ngu_gammas(count: int = 32, largest: float = 0.997, smallest: float = 0.99) -> tuple[float, ...]:
    """NGU's discounts γ_0 … γ_{N-1}: from the largest to the smallest, 1 - γ in equal ratios."""
    _at_least_three(count)
    if not 0.0 <= smallest < largest < 1.0:
        raise ConfigError(
            f"Discounts need 0 <= smallest < largest < 1, not {smallest:g} and {largest:g}. "
            "Example: ngu_gammas(32, 0.997, 0.99)"
        )
    near, far = math.log(1.0 - largest), math.log(1.0 - smallest)
    last = count - 1
    return tuple(1.0 - math.exp(((last - j) * near + j * far) / last) for j in range(count))


def _at_least_three(count: int) -> None:
    if count < 3:
        raise ConfigError(f"NGU's families have at least 3 members, not {count}. Example: ngu_betas(32)")
