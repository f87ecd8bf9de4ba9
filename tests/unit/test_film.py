"""Films of episodes: letters, grids, what an agent thinks, picks, reels and films beside training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import av
import jax
import numpy as np
import pytest
from conftest import agent as make_algo

from sparring import launch
from sparring.background import BackgroundEvaluator, Request, Stage
from sparring.cli.main import main
from sparring.envs import registry
from sparring.errors import ConfigError, EnvironmentFailure
from sparring.evaluation import frames, lettering
from sparring.evaluation.episode import Episode, Performer
from sparring.evaluation.film import Look, Part, Played, Take, film, picked, score
from sparring.evaluation.lettering import Line
from sparring.model import save_agent
from sparring.runs import checkpoint
from sparring.runs.directory import find


def decode(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def performer(name: str, env: Any, trained: bool = True) -> Performer:
    algo = make_algo(name, env, 1)
    train = jax.jit(algo.init)(jax.random.key(1))
    return Performer(algo, jax.jit(algo.policy)(train), train if trained else None)


@pytest.fixture(scope="module")
def world() -> Any:
    return registry.make("CartPole-v1")


# -- letters -------------------------------------------------------------------------------------------------


def test_every_letter_is_there_and_none_looks_like_another() -> None:
    shapes = {letter: lettering.lettered(letter).tobytes() for letter in lettering.SHAPES}
    assert len(set(shapes.values())) == len(shapes)
    assert lettering.lettered("a").tobytes() == shapes["A"]
    assert lettering.lettered("a b").shape == (7, 17)
    assert lettering.lettered("I").tolist()[1] == [False, False, True, False, False]


@pytest.mark.parametrize("ground", [0, 128, 255])
def test_words_stand_out_from_any_ground(ground: int) -> None:
    frame = np.full((400, 600, 3), ground, np.uint8)
    drawn = lettering.overlaid(frame, [Line("step 1"), Line("0", 0.5, "50%", bright=True)])
    box = drawn[:50, :100].max(axis=2).astype(int)
    letters = box[box > 200]
    assert letters.size > 100
    assert letters.min() - np.median(box) > 150
    assert (frame == ground).all()  # a copy is drawn on
    assert (drawn[200:] == ground).all()


def test_a_bar_is_as_long_as_its_share() -> None:
    lengths = [lettering.block([Line("a", share)])[0][5].sum() for share in (0.0, 0.5, 1.0, 7.0)]
    assert np.diff(lengths).tolist() == [lettering.BAR // 2, lettering.BAR // 2, 0]


def test_words_that_do_not_fit_are_cut_not_spilled() -> None:
    small = np.zeros((20, 30, 3), np.uint8)
    assert lettering.overlaid(small, [Line("a very long line")] * 9).shape == small.shape
    assert lettering.card((20, 30, 3), ("a very long title",)).shape == small.shape


# -- pictures side by side -----------------------------------------------------------------------------------


def test_tiles_lie_in_rows_and_empty_places_are_black() -> None:
    shades = [np.full((4, 6, 3), shade, np.uint8) for shade in (10, 20, 30)]
    grid = frames.tiled(shades, 4)
    assert grid.shape == (8, 12, 3)
    assert [int(grid[y, x, 0]) for y, x in ((0, 0), (0, 6), (4, 0), (4, 6))] == [10, 20, 30, 0]
    with pytest.raises(EnvironmentFailure, match="one size"):
        frames.tiled([shades[0], np.zeros((4, 8, 3), np.uint8)])


@pytest.mark.parametrize(
    ("size", "columns", "legible", "wanted"),
    [
        ((400, 600), 1, True, (400, 600)),
        ((400, 600), 4, True, (200, 300)),
        ((210, 160), 2, True, (420, 320)),
        ((210, 160), 2, False, (210, 160)),
    ],
)
def test_pictures_fit_into_the_film(
    size: tuple[int, int], columns: int, legible: bool, wanted: tuple[int, int]
) -> None:
    assert frames.fitted(np.zeros((*size, 3), np.uint8), columns, legible).shape[:2] == wanted


# -- episodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo", "dqn"])
def test_thoughts_are_those_of_the_decision(name: str, world: Any) -> None:
    host = registry.host(world, 1)
    actor = performer(name, world)
    episode = Episode(actor, host, 5)
    for _ in range(3):
        action = episode.decide()
        thought = episode.think()
        told = thought.chances if name == "ppo" else thought.scores
        assert told is not None
        assert int(np.argmax(told)) == int(action)
        value = actor.algo.value(actor.train, jax.numpy.asarray(episode.timestep.obs))[0]
        assert thought.value == pytest.approx(float(value), abs=1e-5)
        episode.advance()
    if name == "ppo":
        assert told.sum() == pytest.approx(1.0, abs=1e-5)


def test_without_a_critic_there_is_no_value(world: Any) -> None:
    episode = Episode(performer("ppo", world, trained=False), registry.host(world, 1), 5)
    episode.decide()
    assert episode.think().value is None


def test_the_same_seed_is_the_same_episode_filmed_or_not(world: Any) -> None:
    host, actor = registry.host(world, 1), performer("ppo", world)
    before = score(actor, host, range(3), deterministic=False)
    assert len({one.total for one in before}) > 1
    told: list[Played] = []
    part = Part(actor, tuple(Take(one.seed) for one in before))
    list(film([part], [host], Look(deterministic=False), 50.0, told.append))
    assert told == before


def test_picks_are_the_best_the_median_and_the_worst() -> None:
    played = [Played(seed, total, 1) for seed, total in enumerate((3.0, 9.0, 1.0, 7.0, 5.0))]
    assert picked(played, "all") == (Take(1, "best"), Take(4, "median"), Take(2, "worst"))
    assert picked(played, "worst") == (Take(2, "worst"),)


def test_an_ended_episode_stays_dimmed_beside_the_others(world: Any) -> None:
    actor = performer("ppo", world)
    told: list[Played] = []
    envs = [registry.host(world, 1) for _ in range(2)]
    part = Part(actor, (Take(0), Take(1)), ("title",))
    shown = list(film([part], envs, Look(grid=2, deterministic=False), 2.0, told.append))
    first, last = told
    assert first.length < last.length
    titles, shots = shown[:3], shown[3:]  # 1.5 seconds of title
    assert all((title == titles[0]).all() for title in titles)
    assert len(shots) == last.length
    half = np.s_[:, :600] if first.seed == 0 else np.s_[:, 600:]
    assert shots[first.length - 1][half].max() == 255
    assert shots[first.length][half].max() == 102
    assert (shots[first.length][half] == shots[-1][half]).all()


# -- the command line ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    values = {"total_timesteps": 2048, "n_envs": 4, "n_steps": 64, "checkpoint_freq": 512, "eval_freq": -1}
    plan = launch.plan("ppo", "CartPole-v1", values=values, use_preset=False)
    launch.train(plan, run_dir=folder, say=lambda text: None, device="cpu")
    return folder


def record(capsys: pytest.CaptureFixture[str], *words: Any) -> dict[str, Any]:
    code = main(["record", *map(str, words), "--json"])
    said = capsys.readouterr()
    assert code == 0, said.err
    return json.loads(said.out.splitlines()[-1])


@pytest.mark.slow
def test_a_grid_of_picked_episodes_with_an_overlay(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(
        capsys, trained, "--grid", 3, "--pick", "all", "--episodes", 7, "--overlay", "-o", tmp_path / "a.mp4"
    )
    by_name = dict(zip(found["picked"], found["returns"], strict=True))
    assert by_name["best"] >= by_name["median"] >= by_name["worst"]
    shots = decode(tmp_path / "a.mp4")
    assert len(shots) == max(found["lengths"])
    assert shots[0].shape == (800, 1200, 3)
    assert shots[0][:60, :60].min() < 100  # the words' dark ground on CartPole's white
    again = record(capsys, trained, "--pick", "worst", "--episodes", 7, "-o", tmp_path / "b.mp4")
    assert again["returns"] == [by_name["worst"]]


@pytest.mark.slow
def test_a_reel_goes_through_the_checkpoints(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = record(capsys, trained, "--reel", "--overlay")
    steps = [int(re.sub(r"\D", "", title)) for title in found["parts"]]
    kept = [checkpoint.read_manifest(path).step for path in checkpoint.listing(find(trained).checkpoints)]
    assert steps == sorted(kept)
    assert len(steps) == 3
    film_of_it = trained / "videos" / "reel-seed-0.mp4"
    assert len(decode(film_of_it)) == sum(found["lengths"]) + 3 * 75  # 1.5 seconds at 50 per second each


# -- beside training -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_is_filmed_beside_its_training(tmp_path: Path) -> None:
    said: list[str] = []
    values = {"total_timesteps": 2048, "n_envs": 4, "n_steps": 64, "video_freq": 1024, "video_grid": 2}
    plan = launch.plan("ppo", "CartPole-v1", values=values, use_preset=False)
    launch.train(plan, run_dir=tmp_path / "run", say=said.append, device="cpu")
    run = find(tmp_path / "run")
    films = sorted(run.videos.iterdir())
    assert "step-2048.mp4" in {path.name for path in films}
    assert {path.name for path in films} <= {"step-1024.mp4", "step-2048.mp4"}
    assert decode(films[-1])[0].shape == (400, 1200, 3)
    assert not list(run.snapshots.iterdir())
    assert not any("film" in line and "failed" in line for line in said)


@pytest.mark.slow
def test_a_film_that_fails_is_told_once_and_evaluations_go_on(tmp_path: Path, world: Any) -> None:
    def snapshot(name: str) -> Path:
        algo = make_algo("ppo", world, 1)
        save_agent(tmp_path / name, algo, jax.jit(algo.init)(jax.random.key(0)), "ppo", full=True)
        return tmp_path / name

    said: list[str] = []
    player = BackgroundEvaluator(Stage("gym:CartPole-v1", {}, None, 1, 1, trusted=False), said.append)
    (tmp_path / "file").touch()
    for step in (1, 2, 3):  # the first is being filmed, the second is dropped for the third
        film_of_it = tmp_path / "file" / "is-no-folder.mp4"
        player.submit(Request(step, 0.0, (snapshot(f"film-{step}"),), (0,), film=film_of_it))
    player.submit(Request(4, 0.0, (snapshot("eval"),), (0,)))
    answers = player.drain()
    player.close()
    assert [answer.request.step for answer in answers] == [4]
    assert not player.films
    assert len(said) == 1
    assert re.search(r"film at step 1 failed: .*without films", said[0])
    assert not list(tmp_path.glob("film-*"))


def test_impossible_film_settings_are_refused_before_a_folder_exists(tmp_path: Path) -> None:
    plan = launch.plan("ppo", "CartPole-v1", values={"video_grid": 0}, use_preset=False)
    with pytest.raises(ConfigError, match="video_grid at least 1"):
        launch.train(plan, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
