"""The model card of an agent: what the Hub's filters look for, results with their interval, how to use it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sparring.errors import missing_extra
from sparring.metrics.sqlite import StoredAlert
from sparring.reference import is_reference
from sparring.runs.artefact import Artefact

ALERTS = 10
"""Alerts that a card names; the others are counted."""


def card(
    repo: str,
    agent: Artefact,
    config: Mapping[str, Any],
    results: Mapping[str, Any],
    alerts: Sequence[StoredAlert],
    video: bool,
) -> str:
    """README.md: YAML front matter and text."""
    name = algorithm_name(agent)
    low, high = results["ci95"]
    score = f"{results['mean_reward']:.2f} +/- {results['std_reward']:.2f}"
    kind = "deterministic" if results["is_deterministic"] else "stochastic"
    parts = [
        f"---\n{front_matter(name, agent, score)}---",
        f"# {name} on {agent.spec.id}",
        f"An agent trained with {name} on `{agent.spec.id}` by sparring.",
        "## Results",
        f"| | |\n|---|---|\n"
        f"| mean reward | {score} |\n"
        f"| 95 % interval of the mean | {low:.2f} to {high:.2f} |\n"
        f"| episodes | {results['n_eval_episodes']}, {kind}, on seeds that training never used |\n"
        f"| steps of training | {results['steps']:,} |",
        "The interval is over episodes of this one agent; it says nothing about other seeds of training.",
        "## Use",
        f"```sh\npip install 'sparring[hub]'\nsparring pull {repo} -o agent\n"
        "sparring eval agent\nsparring play agent\n```",
        snippet(agent),
        "The files hold numbers and settings, no code: nothing in them is executed.",
    ]
    if needed := own_code(agent, config):
        parts.append(f"It needs code that is not part of this repository: `{'`, `'.join(needed)}`.")
    if video:
        parts.append("The film is `replay.mp4`.")
    if alerts:
        parts += ["## Health", health(alerts)]
    parts += [
        "## Settings",
        f"```json\n{json.dumps(config, indent=1)}\n```",
        "## Provenance",
        "| | |\n|---|---|\n" + "\n".join(f"| {key} | {plain(v)} |" for key, v in agent.provenance.items()),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(name: str, agent: Artefact, score: str) -> str:
    """The YAML by which the Hub finds and lists the agent."""
    try:
        from huggingface_hub import EvalResult, ModelCardData
    except ImportError as error:
        raise missing_extra("huggingface_hub", "hub") from error
    env = agent.spec.id
    result = EvalResult(
        task_type="reinforcement-learning",
        task_name="reinforcement-learning",
        dataset_type=env,
        dataset_name=env,
        metric_type="mean_reward",
        metric_name="mean_reward",
        metric_value=score,
        verified=False,
    )
    data = ModelCardData(
        library_name="sparring",
        tags=[env, "deep-reinforcement-learning", "reinforcement-learning", "sparring"],
        model_name=name,
        eval_results=[result],
    )
    return str(data.to_yaml()) + "\n"


def snippet(agent: Artefact) -> str:
    """Python that loads the pulled agent and lets it decide once."""
    return (
        "```python\n"
        "from sparring import Agent\n"
        "from sparring.spaces import zeros\n\n"
        'agent = Agent.load("agent/last")\n'
        "observation = zeros(agent.spec.observation)  # one of your own environment's\n"
        "action, state = agent.predict(observation, deterministic=True)\n"
        "```"
    )


def health(alerts: Sequence[StoredAlert]) -> str:
    """What the health rules said, first onset first."""
    rows = [
        f"| {a.onset:,} | {plain(a.level)} | {plain(a.name)} | {plain(a.evidence)} |" for a in alerts[:ALERTS]
    ]
    table = "\n".join(["| step | level | rule | evidence |", "|---|---|---|---|", *rows])
    more = len(alerts) - len(rows)
    return table + (f"\n\n… and {more} more." if more > 0 else "")


def algorithm_name(agent: Artefact) -> str:
    """The algorithm as people write it: PPO, or the class in a file of the user's own."""
    name = agent.algorithm
    return name.rpartition(":")[2] if is_reference(name) else name.upper()


def own_code(agent: Artefact, config: Mapping[str, Any]) -> list[str]:
    """References to Python files that the agent cannot do without."""
    settings = config.get("config")
    named = [agent.algorithm, agent.config.get("network"), config.get("algorithm"), config.get("env")]
    named += [settings.get("network")] if isinstance(settings, Mapping) else []
    return [text for text in dict.fromkeys(map(str, named)) if is_reference(text)]


def plain(value: Any) -> str:
    """A text that cannot leave its cell of a table."""
    return " ".join(str(value).replace("|", "/").replace("`", "'").replace("<", "‹").split())
