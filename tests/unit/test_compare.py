"""Comparing groups of runs: honest verdicts, one table per environment, nothing left out in silence."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_help import Shell
from made_runs import make_run, spread_around

from sparring.errors import ConfigError, UnknownName
from sparring.evaluation.comparison import Comparison, compare
from sparring.evaluation.units import find_units
from sparring.evaluation.verdict import judge, more_seeds


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compare") / "runs"
    make_run(root, "low", spread_around(100, 6))
    make_run(root, "high", spread_around(200, 6, seed=1), algo="sac", config={"tau": 0.005})
    make_run(root, "alike", spread_around(102, 6, seed=2), config={"learning_rate": 3e-4})
    make_run(root, "alone", [150.0], algo="dqn")
    make_run(root, "pendulum-low", spread_around(-900, 5), env="Pendulum-v1")
    make_run(root, "pendulum-high", spread_around(-200, 5), env="gym:Pendulum-v1", algo="sac")
    make_run(root, "killed", [120.0, 130.0], state="killed", steps=(500, 1000), algo="a2c")
    make_run(root, "training", [50.0, 60.0], metric="rollout/ep_rew_mean", algo="pqn")
    make_run(root, "empty", [], algo="td3", state="failed")
    return root


@pytest.fixture
def sparring(capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(root.parent)
    return Shell(capsys)


def between(root: Path, *texts: str, **options: object) -> Comparison:
    return compare(find_units(texts, root), **options)  # type: ignore[arg-type]


# -- verdicts ----------------------------------------------------------------------------------------------


def test_a_clear_difference_is_named() -> None:
    verdict = judge("A", "B", [(np.array(spread_around(100, 6)), np.array(spread_around(200, 6, seed=1)))])
    assert verdict.better == "B"
    assert verdict.sentence.startswith("B is better than A (higher is better)")
    assert verdict.difference is not None
    assert 80 < verdict.difference.low < verdict.difference.value < verdict.difference.high < 120
    assert (verdict.improvement, verdict.more_seeds) == (1.0, None)
    lower = judge(
        "A", "B", [(np.array(spread_around(100, 6)), np.array(spread_around(200, 6, seed=1)))], "lower"
    )
    assert (lower.better, lower.improvement) == ("A", 0.0)


@pytest.mark.parametrize("n", [2, 3])
def test_too_few_seeds_never_decide(n: int) -> None:
    """With three seeds each, even complete separation happens by chance once in ten times."""
    verdict = judge("A", "B", [(np.arange(n) * 1.0, np.arange(n) + 1000.0)])
    assert verdict.better is None
    assert verdict.more_seeds == 6 - n
    assert f"about {6 - n} more seeds of each needed" in verdict.sentence


def test_more_comparisons_ask_for_more_evidence() -> None:
    pair = [(np.arange(4) * 1.0, np.arange(4) + 1000.0)]
    assert judge("A", "B", pair).better == "B"
    assert judge("A", "B", pair, comparisons=3).better is None


def test_equal_groups_are_rarely_called_different() -> None:
    random = np.random.default_rng(0)
    wrong = [
        judge("A", "B", [(random.normal(size=5), random.normal(size=5))]).better is not None
        for _ in range(150)
    ]
    assert np.mean(wrong) <= 0.08


def test_one_seed_says_nothing() -> None:
    verdict = judge("A", "B", [(np.array([1.0, 2.0]), np.array([9.0]))])
    assert verdict.sentence.startswith("Nothing can be concluded about A and B: B has one seed.")
    assert (verdict.better, verdict.difference, verdict.p_value) == (None, None, None)


def test_equal_scores_are_called_equal() -> None:
    verdict = judge("A", "B", [(np.full(3, 500.0), np.full(4, 500.0))])
    assert verdict.sentence == "A and B are equal: every seed has 500."


def test_a_hopeless_difference_is_not_given_a_number() -> None:
    assert more_seeds(0.5, 5) is None
    assert more_seeds(0.51, 5) is None
    assert more_seeds(0.7, 5) == 28
    x = np.arange(10.0)
    assert "200 more seeds of each would not show it" in judge("A", "B", [(x, x)]).sentence


def test_environments_are_averaged_by_chance_not_by_score() -> None:
    random = np.random.default_rng(0)
    pairs = [(random.normal(0, 1, 5) * scale, random.normal(3, 1, 5) * scale) for scale in (1, 1000)]
    verdict = judge("A", "B", pairs)
    assert verdict.better == "B"
    assert "over 2 environments" in verdict.sentence
    assert verdict.difference is None
    against = judge("A", "B", [pairs[0], pairs[1][::-1]])  # better in one, worse in the other
    assert against.better is None


# -- comparisons -------------------------------------------------------------------------------------------


def test_the_last_evaluation_of_every_seed_is_a_score(root: Path) -> None:
    found = between(root, "low", "high")
    assert found.metric == "eval/mean_reward"
    (table,) = found.tables
    assert table.rows[0].scores.tolist() == pytest.approx(spread_around(100, 6))
    assert table.rows[0].seeds == [f"low:{i}" for i in range(6)]
    assert found.verdicts[0].better == "B"
    assert found.differences == {"algorithm": [["ppo"], ["sac"]], "tau": [[None], [0.005]]}
    assert found.notes == []
    low, high = table.rows
    assert low.profile[0] == high.profile[0] == 1.0
    assert low.profile[-1] == high.profile[-1] == 0.0
    assert (high.profile >= low.profile).all()


def test_a_step_can_be_asked_for(root: Path) -> None:
    found = between(root, "low", "high", at=2500)
    assert found.tables[0].rows[0].scores.tolist() == pytest.approx([x / 2 for x in spread_around(100, 6)])
    with pytest.raises(UnknownName, match="no value of 'eval/mean_reward' up to step 10"):
        between(root, "low", "high", at=10)


def test_one_seed_has_no_interval(root: Path) -> None:
    found = between(root, "low", "alone")
    row = found.tables[0].rows[1]
    assert (row.interval, row.improvement, row.improvement_interval, row.profile_band) == (
        None,
        1.0,
        None,
        None,
    )
    assert any("One seed has no interval" in note for note in found.notes)


def test_several_environments_have_a_table_each(root: Path) -> None:
    found = between(root, "low,pendulum-low", "high,pendulum-high")
    assert [table.env for table in found.tables] == ["CartPole-v1", "Pendulum-v1"]
    assert [len(row.scores) for table in found.tables for row in table.rows] == [6, 6, 5, 5]
    assert found.verdicts[0].better == "B"
    part = between(root, "low,pendulum-low", "high")
    assert [table.env for table in part.tables] == ["CartPole-v1"]
    assert "Left out, because not every group has it: Pendulum-v1." in part.notes


def test_runs_of_one_group_are_pooled(root: Path) -> None:
    found = between(root, "high", "low,alike")
    assert [len(row.scores) for row in found.tables[0].rows] == [6, 12]
    assert found.differences["learning_rate"] == [[0.001], [0.0003, 0.001]]


def test_the_metric_is_one_that_all_have(root: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"B \(training\) has no value of 'eval/mean_reward'.*It has: rollout"
    ):
        between(root, "low", "training")
    found = between(root, "training", "training")
    assert found.metric == "rollout/ep_rew_mean"
    assert any("In more than one group" in note for note in found.notes)


def test_cautions_are_said(root: Path) -> None:
    notes = " ".join(between(root, "low", "killed").notes)
    assert "fewer than 5 seeds" in notes
    assert "different steps (A at 4,000, B at 1,000). For the same: --at 1000" in notes
    assert "B has runs that did not finish: killed (killed)" in notes


def test_a_seed_without_a_score_is_not_dropped_in_silence(root: Path, tmp_path: Path) -> None:
    make_run(tmp_path, "whole", [1.0, 2.0])
    lost = make_run(tmp_path, "part", [1.0, 2.0])
    text = (lost.path / "config.toml").read_text()
    (lost.path / "config.toml").write_text(text.replace("[0, 1]", "[0, 1, 2]"))
    notes = between(tmp_path, "whole", "part").notes
    assert "B: 1 of 3 seeds of part (finished) without eval/mean_reward are left out." in notes


def test_impossible_comparisons_name_the_fix(root: Path) -> None:
    with pytest.raises(ConfigError, match="two groups"):
        between(root, "low")
    with pytest.raises(ConfigError, match=r"no environment in common \(A: CartPole-v1; B: Pendulum-v1"):
        between(root, "low", "pendulum-low")
    with pytest.raises(UnknownName, match="Did you mean 'eval/mean_reward'"):
        between(root, "low", "high", metric="eval/mean_rewrd")
    with pytest.raises(UnknownName, match="It has no metrics yet"):
        between(root, "low", "empty")


# -- the command -------------------------------------------------------------------------------------------


def test_compare_says_and_writes_the_same(sparring: Shell) -> None:
    said = sparring("compare", "algo=ppo env=CartPole-v1", "algo=sac env=Cart*", "--target", 250)
    assert said.code == 0
    head, first, second = said.out.split("\n\n")[1].splitlines()[1:]
    assert head.split() == ["n", "IQM", "95", "%", "interval", "P(better", "than", "A)", "optimality", "gap"]
    assert first.split()[:2] == ["A", "12"]
    assert "B is better than A" in said.out
    assert "Settings that differ" in said.out
    data = sparring("compare", "algo=ppo env=CartPole-v1", "algo=sac env=Cart*", "--json").last
    assert json.loads(json.dumps(data)) == data
    assert data["verdicts"][0]["better"] == "B"
    assert data["verdicts"][0]["sentence"] in " ".join(said.out.split())
    assert data["configuration"]["tau"] == {"A": [None], "B": [0.005]}
    units = data["environments"][0]["units"]
    assert units["A"]["n"] == 12
    assert f"{units['B']['iqm']:.4g}" in second
    assert units["B"]["ci95"][0] < units["B"]["iqm"] < units["B"]["ci95"][1]


def test_compare_three_against_the_first(sparring: Shell) -> None:
    data = sparring("compare", "low", "high", "alike", "--json").last
    assert [(v["first"], v["second"], v["better"]) for v in data["verdicts"]] == [
        ("A", "B", "B"),
        ("A", "C", None),
    ]
    assert "cannot be separated" in data["verdicts"][1]["sentence"]


def test_compare_without_an_interval_says_so(sparring: Shell) -> None:
    said = sparring("compare", "low", "alone")
    assert said.code == 0
    assert "none: one seed" in said.out
    assert "Nothing can be concluded" in said.out


def test_lower_can_be_better(sparring: Shell) -> None:
    data = sparring("compare", "high", "low", "--lower-is-better", "--target", 0, "--json").last
    assert data["verdicts"][0]["better"] == "B"
    low = data["environments"][0]["units"]["B"]
    assert low["probability_of_improvement"] == 1.0
    assert low["optimality_gap"] == pytest.approx(np.mean(spread_around(100, 6)))  # above the target here


def test_mistakes_end_with_two(sparring: Shell) -> None:
    for words in (("low",), ("low", "nothing"), ("low", "high", "--metric", "none"), ("low", "algo=")):
        assert sparring("compare", *words).code == 2
