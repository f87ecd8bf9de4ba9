"""What is done about an evaluating process that dies: over and over, over a film, or over one snapshot."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from sparring import background
from sparring.background import HANGING, PATIENCE, BackgroundEvaluator, Request, Stage


class Dead:
    """A process that has ended."""

    pid, exitcode = None, -9

    def join(self, seconds: float | None = None) -> None: ...

    def kill(self) -> None: ...


class Scripted(BackgroundEvaluator):
    """Its processes are the far ends of pipes, which the test answers or closes."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.theirs: Connection
        super().__init__(Stage("", {}, None, 1, 1, trusted=False), self.said.append)

    def _start(self) -> None:
        self._pipe, self.theirs = multiprocessing.Pipe()
        self._process = Dead()

    def die(self) -> Request:
        """Takes a request and dies over it."""
        request: Request = self.theirs.recv()
        self.theirs.close()
        assert self.poll(1.0) == []
        return request

    def answer(self) -> list[int]:
        request: Request = self.theirs.recv()
        self.theirs.send(("filmed",) if request.film else ("done", (), ()))
        return [answer.request.step for answer in self.poll(1.0)]


def snapshot(folder: Path, step: int, film: bool = False) -> Request:
    place = folder / f"{step}{'-film' if film else ''}"
    place.mkdir()
    return Request(step, 0.0, (place,), (0,), film=folder / f"{step}.mp4" if film else None)


def test_twenty_deaths_with_answers_between_give_nothing_up(tmp_path: Path) -> None:
    evaluator = Scripted()
    for step in range(10):
        evaluator.submit(snapshot(tmp_path, step))
        assert [evaluator.die().step, evaluator.die().step] == [step, step]
        assert evaluator.answer() == [step]
    assert evaluator.restarts == 20
    assert len(evaluator.said) == 20
    assert all("was started again" in line for line in evaluator.said)
    evaluator.close()


def test_a_snapshot_that_kills_every_process_is_given_up_and_the_next_is_played(tmp_path: Path) -> None:
    evaluator = Scripted()
    evaluator.submit(snapshot(tmp_path, 1))
    for _ in range(PATIENCE):
        assert evaluator.busy
        evaluator.die()
    assert not evaluator.busy
    assert evaluator.said[-1] == "The evaluation at step 1 was given up: its process died 3 times."
    assert not (tmp_path / "1").exists()
    evaluator.submit(snapshot(tmp_path, 2))
    assert evaluator.answer() == [2]
    evaluator.close()


def test_deaths_over_evaluations_do_not_end_films(tmp_path: Path) -> None:
    evaluator = Scripted()
    evaluator.submit(snapshot(tmp_path, 1))
    evaluator.submit(snapshot(tmp_path, 1, film=True))
    evaluator.die()  # the evaluation
    order = [evaluator.die() for _ in range(3)]
    assert [request.film is not None for request in order] == [True, False, True]
    assert evaluator.films  # four deaths, but two over the film
    while evaluator.busy:
        evaluator.answer()
    assert evaluator.films
    evaluator.close()


def film_killed(evaluator: Scripted, folder: Path, step: int) -> None:
    evaluator.submit(snapshot(folder, step, film=True))
    for _ in range(PATIENCE):
        assert evaluator.films
        evaluator.die()
    assert f"The film at step {step} was given up" in evaluator.said[-1]


def test_films_that_kill_every_process_end_films_and_evaluations_go_on(tmp_path: Path) -> None:
    evaluator = Scripted()
    for step in range(PATIENCE):
        film_killed(evaluator, tmp_path, step)
    assert not evaluator.films
    assert "without films" in evaluator.said[-1]
    evaluator.submit(snapshot(tmp_path, 7))
    assert evaluator.answer() == [7]
    evaluator.submit(snapshot(tmp_path, 8))
    for _ in range(PATIENCE):
        evaluator.die()
    assert evaluator.said[-1] == "The evaluation at step 8 was given up: its process died 3 times."
    evaluator.close()


def test_a_film_given_up_does_not_end_films_while_others_are_made(tmp_path: Path) -> None:
    evaluator = Scripted()
    for step in range(2 * PATIENCE):
        film_killed(evaluator, tmp_path, 10 * step)
        evaluator.submit(snapshot(tmp_path, 10 * step + 1, film=True))
        evaluator.answer()
    assert evaluator.films
    evaluator.close()


def test_a_process_that_died_while_idle_is_replaced_at_the_next_snapshot(tmp_path: Path) -> None:
    evaluator = Scripted()
    evaluator.submit(snapshot(tmp_path, 1))
    assert evaluator.answer() == [1]
    evaluator.theirs.close()
    evaluator.submit(snapshot(tmp_path, 2))
    assert evaluator.answer() == [2]
    assert evaluator.restarts == 1
    evaluator.close()


def test_a_trainer_that_went_away_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in the midst of an evaluation: nobody is there to answer to."""
    ours, theirs = multiprocessing.Pipe()

    def played(*_: object) -> tuple[tuple[()], tuple[()]]:
        ours.close()
        return (), ()

    for name, what in (
        ("play", played),
        ("_environment", lambda stage: None),
        ("follow_parent", lambda: None),
    ):
        monkeypatch.setattr(background, name, what)
    monkeypatch.setattr(background.signal, "signal", lambda *_: None)
    ours.send(Request(1, 0.0, (), ()))
    background.serve(theirs, Stage("", {}, None, 1, 1, trusted=False))
    assert capfd.readouterr().err == ""


def test_what_never_ends_is_given_up_and_the_next_is_played(tmp_path: Path) -> None:
    evaluator = Scripted()
    now = [0.0]
    evaluator._clock = lambda: now[0]
    evaluator.submit(snapshot(tmp_path, 1))
    now[0] = 100.0
    assert evaluator.answer() == [1]
    evaluator.submit(snapshot(tmp_path, 2))
    now[0] += HANGING * 100.0  # as long as that is still plausible: one has taken 100 s
    assert evaluator.poll() == []
    assert evaluator.busy
    evaluator.submit(snapshot(tmp_path, 3))
    now[0] += 1.0
    assert evaluator.poll() == []
    assert evaluator.said == ["The evaluation at step 2 was given up: no end after 2000 s."]
    assert evaluator.answer() == [3]
    assert not list(tmp_path.glob("2*"))
    evaluator.close()


def test_waiting_ends_when_asked_to(tmp_path: Path) -> None:
    evaluator = Scripted()
    evaluator.submit(snapshot(tmp_path, 1))
    asked = iter([False, True])
    assert evaluator.drain(lambda: next(asked)) == []
    evaluator.close()
