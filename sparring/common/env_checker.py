"""check_env: what `sparring check-env` finds, as SB3 reports it."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium

from sparring.errors import EnvironmentFailure


class _Kept(gymnasium.Wrapper):
    """An environment that stays open when the check is over."""

    def close(self) -> None:
        pass


def check_env(env: Any, warn: bool = True, skip_render_check: bool = True) -> None:
    """Raises when an environment breaks Gymnasium's contract; warns about what is unwise."""
    from sparring.envs.check import check

    findings = check(_Kept(env) if isinstance(env, gymnasium.Env) else env)
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise EnvironmentFailure("\n".join(f"{f.what}: {f.why} {f.fix}".strip() for f in errors))
    for finding in findings:
        if warn and finding.level == "warning":
            warnings.warn(f"{finding.what}: {finding.why} {finding.fix}".strip(), stacklevel=2)
    if not skip_render_check and getattr(env, "render_mode", None) in ("rgb_array", "ansi"):
        env.reset()
        if env.render() is None:
            raise EnvironmentFailure(f"render() returned nothing with render_mode={env.render_mode!r}.")
