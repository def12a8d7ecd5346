"""Plays the native engine and the original side by side and reports every difference.

    python -m envs.alfworld.differential --archive FILE [--processes 2] [--limit N] --json OUT

For each game: its stored walkthrough to the win, then a seeded walk of random admissible commands with some
inadmissible ones in between. Compared at every step: text, acceptance, admissible commands, win, and
the whole state.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import multiprocessing
import pathlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tqdm

from envs.alfworld.engine import Engine, NativeEngine
from envs.alfworld.pddl import GAME_FILE, game_id, parse_game, read_archive_raw, read_game_file

# The original gives memory back only when a process ends.
_GAMES_PER_PROCESS = 40
_INADMISSIBLE = ("", " ", "xyzzy", "go to", "Look", "go to nowhere 1", "take  from ", "put it in/on it")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where two engines first disagree.

    Attributes:
      game: the game's id.
      commands: everything that was played, the last command included; empty at the start.
      what: `text`, `admissible`, `won` or `world`.
      native, original: the two values.
    """

    game: str
    commands: tuple[str, ...]
    what: str
    native: Any
    original: Any


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Result of one game.

    Attributes:
      game: the game's id.
      steps: how many states were compared.
      wins: how many of the plays ended in a win (1 for a game with a valid walkthrough).
      verbs: first words of the accepted commands, with their number.
      difference: the first difference, if there is one.
    """

    game: str
    steps: int
    wins: int
    verbs: Mapping[str, int]
    difference: Difference | None


def compare_game(data: Mapping[str, Any], name: str, original: Any, *, walk: int, seed: int) -> Comparison:
    """Play one game on both engines.

    Args:
      data: content of the game file.
      name: the game's id.
      original: a `TextWorldEngine`, reused between games because each new one keeps memory.
      walk: number of steps of the random walk.
      seed: of the random walk; combined with the name.
    """
    game = parse_game(data, name)
    native = NativeEngine()
    steps = wins = 0
    verbs: collections.Counter[str] = collections.Counter()
    difference = None
    for commands in (game.walkthrough, random_walk(native, random.Random(f"{seed} {name}"), walk)):
        texts = native.start(game), original.start_data(data, game)
        played, difference = compare_play(native, original, texts, commands)
        steps += len(played) + 1
        verbs.update(command.split()[0] for command, accepted in played if accepted)
        wins += native.won()
        if difference is not None:
            break
    return Comparison(name, steps, wins, verbs, difference)


def compare_play(
    native: Engine, original: Engine, texts: tuple[str, str], commands: Iterable[str]
) -> tuple[list[tuple[str, bool]], Difference | None]:
    """Play `commands` on two engines whose first texts are given.

    Returns:
      The played commands and whether the native engine accepted them, and the first difference.
    """
    played: list[tuple[str, bool]] = []
    answers: tuple[Any, Any] = texts
    for command in itertools.chain(commands, [None]):
        views = zip(_view(native, answers[0]), _view(original, answers[1]), strict=True)
        for (what, ours), (_, theirs) in views:
            if ours != theirs:
                history = tuple(command for command, _ in played)
                return played, Difference(native.game.id, history, what, ours, theirs)
        if command is not None:
            answers = native.step(command), original.step(command)
            played.append((command, answers[0][1]))
    return played, None


def _view(engine: Engine, answer: Any) -> Iterator[tuple[str, Any]]:
    yield "text", answer
    yield "admissible", engine.admissible()
    yield "won", engine.won()
    yield "world", dataclasses.asdict(engine.world)


def random_walk(engine: NativeEngine, rng: random.Random, steps: int) -> Iterator[str]:
    """Random commands: half of them by a random verb first, so that rare verbs come up; some inadmissible."""
    for _ in range(steps):
        admissible = engine.admissible()
        draw = rng.random()
        if draw < 0.1:
            yield rng.choice(_INADMISSIBLE)
        elif draw < 0.6:
            verb = rng.choice(sorted({command.split()[0] for command in admissible}))
            yield rng.choice([command for command in admissible if command.split()[0] == verb])
        else:
            yield rng.choice(admissible)


def folder_games(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every game file below a folder, in order: id and content."""
    for path in sorted(folder.rglob(GAME_FILE)):
        yield game_id(path.parent), read_game_file(path)


def _archive_games(archive: pathlib.Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for member, data in read_archive_raw(archive):
        yield game_id(pathlib.PurePosixPath(member)), data


_original: Any = None


def _compare_in_worker(job: tuple[str, dict[str, Any], int, int, bool]) -> Comparison:
    """One game in a worker process, which keeps one original engine."""
    global _original
    if _original is None:
        # Imported here: the module must be importable without the original engine's packages.
        from envs.alfworld.textworld import TextWorldEngine

        _original = TextWorldEngine(memoise=job[4])
    name, data, walk, seed, _ = job
    return compare_game(data, name, _original, walk=walk, seed=seed)


def compare_games(
    games: Iterable[tuple[str, dict[str, Any]]],
    *,
    processes: int,
    walk: int,
    seed: int,
    memoise: bool,
    total: int | None = None,
) -> list[Comparison]:
    """Compare many games in worker processes that are replaced regularly, with a progress bar."""
    jobs = ((name, data, walk, seed, memoise) for name, data in games)
    results: list[Comparison] = []
    context = multiprocessing.get_context("spawn")
    with tqdm.tqdm(total=total, unit="game", mininterval=5.0) as progress:
        while batch := list(itertools.islice(jobs, _GAMES_PER_PROCESS * processes)):
            with context.Pool(processes) as pool:
                for result in pool.imap_unordered(_compare_in_worker, batch):
                    results.append(result)
                    progress.set_postfix(differ=sum(r.difference is not None for r in results), refresh=False)
                    progress.update()
    return sorted(results, key=lambda result: result.game)


def summary(results: Sequence[Comparison]) -> dict[str, Any]:
    """Counts and differences, ready for JSON."""
    differences = [dataclasses.asdict(r.difference) for r in results if r.difference is not None]
    return {
        "games": len(results),
        "agreeing": len(results) - len(differences),
        "won": sum(result.wins > 0 for result in results),
        "states": sum(result.steps for result in results),
        "verbs": dict(sum((collections.Counter(result.verbs) for result in results), collections.Counter())),
        "differences": differences,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status is 1 if any game differs."""
    parser = argparse.ArgumentParser(description="Compare the native ALFWorld engine with the original.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--archive", type=pathlib.Path, help="archive with all games (.jsonl.xz)")
    source.add_argument("--folder", type=pathlib.Path, help=f"folder with {GAME_FILE} files below it")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only the first N games")
    parser.add_argument("--shuffle", action="store_true", help="in a random order, drawn from the seed")
    parser.add_argument("--walk", type=int, default=15, help="steps of the random walk")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="the original exactly as it is, without memory")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the result")
    options = parser.parse_args(arguments)
    games = _archive_games(options.archive) if options.archive else folder_games(options.folder)
    if options.shuffle:
        games = iter(random.Random(options.seed).sample(everything := list(games), len(everything)))
    results = compare_games(
        itertools.islice(games, options.limit),
        processes=options.processes,
        walk=options.walk,
        seed=options.seed,
        memoise=not options.plain,
        total=options.limit,
    )
    report = summary(results)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, default=sorted) + "\n", encoding="utf-8")
    print(
        f"{report['agreeing']} of {report['games']} games agree "
        f"({report['states']} states, {report['won']} games won); accepted commands: {report['verbs']}"
    )
    for difference in report["differences"][:5]:
        print(json.dumps(difference, indent=1, default=sorted))
    return 1 if report["differences"] or not results else 0


if __name__ == "__main__":
    raise SystemExit(main())
