"""Search QA as a `Domain`: options, task lists, the environment, texts for the tokenizer."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import overload

from envs.base import Domain, Observation, StepResult, Task, VerifierRecord
from envs.search_qa import expert, score, verifier
from envs.search_qa.data import (
    DATASETS,
    SPLITS,
    Question,
    corpus_files,
    load_questions,
    question_files,
    read_passages,
)
from envs.search_qa.generator import QUESTIONS_PER_WORLD, make_world, names_in
from envs.search_qa.mutations import mutations as question_mutations
from envs.search_qa.notes import notes
from envs.search_qa.protocol import (
    ANSWER,
    BARE_PROMPT,
    CORRECTION,
    PROMPT,
    SEARCH,
    THINK,
    ask,
    documents,
    foreign,
    information,
    read_reply,
)
from envs.search_qa.retrieval import Bm25Retriever, HttpRetriever, RecordedRetriever, Retriever

_PROMPTS = {"search_r1": PROMPT, "question": BARE_PROMPT}
RETRIEVERS = ("bm25", "http", "recorded")
# Worlds of the splits start here, so they are disjoint; options.seed shifts all of them.
_FIRST_WORLD = {"train": 0, "valid": 10**6}
_WORLDS = 10**7
_CORPUS_TASKS = 400
# Recorded queries name the passages of the corpus files beside the record.
RECORD = "e5_retrieval_log.jsonl"


@dataclasses.dataclass(frozen=True)
class SearchQaOptions:
    """Which questions, which retriever, how an episode goes, and what is scored.

    Attributes:
      data_dir: folder of the real data, see `envs.search_qa.data`; empty: generated worlds.
      datasets: the data sets to play, of `data.DATASETS`.
      num_train, num_valid: generated tasks of each split. seed: of the generated worlds.
      tasks_per_world: questions taken from a generated world, at most `generator.QUESTIONS_PER_WORLD`.
      retriever: `bm25` over `corpus*.jsonl`; `http`, Search-R1's server; `recorded`, the file
        `e5_retrieval_log.jsonl` of the data folder.
      retriever_url: of that server.
      timeout_s_of_search, retries: of the HTTP client. All attempts together must end before `timeout_s`
        of the environment.
      topk: passages a search shows.
      max_turns: searches and corrections after which one last reply without a search follows (4; early
        releases of the benchmark had 2).
      max_information: most characters of what a search shows, 0 for all (the benchmark cuts at 500 tokens
        of the model's tokenizer, which an environment does not know).
      prompt: `search_r1`, the benchmark's text, or `question` alone, for models too small to be told.
      reward: `em`, exact match, or `format`, Search-R1's reward for both, see `score.FORMAT_SCORES`.
    """

    data_dir: str = ""
    datasets: tuple[str, ...] = DATASETS
    num_train: int = 2000
    num_valid: int = 100
    seed: int = 0
    tasks_per_world: int = 20
    retriever: str = "bm25"
    retriever_url: str = ""
    timeout_s_of_search: float = 5.0
    retries: int = 2
    topk: int = 3
    max_turns: int = 4
    max_information: int = 0
    prompt: str = "search_r1"
    reward: str = "em"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("retriever", RETRIEVERS),
            ("prompt", tuple(_PROMPTS)),
            ("reward", verifier.REWARDS),
        ):
            if vars(self)[name] not in allowed:
                raise ValueError(f"{name}={vars(self)[name]!r} is not one of {allowed}")
        for name, least in (("topk", 1), ("max_turns", 1), ("max_information", 0), ("retries", 0)):
            if vars(self)[name] < least:
                raise ValueError(f"{name}={vars(self)[name]} must be {least} or more")
        if unknown := set(self.datasets) - set(DATASETS):
            raise ValueError(f"datasets has {sorted(unknown)}, known are {DATASETS}")
        if not 1 <= self.tasks_per_world <= QUESTIONS_PER_WORLD:
            raise ValueError(
                f"tasks_per_world={self.tasks_per_world} must be from 1 to {QUESTIONS_PER_WORLD}, what a "
                "world has"
            )
        for name in ("num_train", "num_valid"):
            if not 1 <= vars(self)[name] <= _FIRST_WORLD["valid"]:
                raise ValueError(f"{name}={vars(self)[name]} must be from 1 to {_FIRST_WORLD['valid']}")
        if not 0 <= self.seed < 10**6:
            raise ValueError(f"seed={self.seed} must be in [0, {10**6})")
        if self.timeout_s_of_search <= 0:
            raise ValueError(f"timeout_s_of_search={self.timeout_s_of_search} must be above 0")
        self._check_retriever()

    def _check_retriever(self) -> None:
        if (self.retriever == "http") != bool(self.retriever_url):
            raise ValueError(
                f"retriever={self.retriever!r} and retriever_url={self.retriever_url!r}: an address belongs "
                "to retriever='http', and only to it"
            )
        if self.retriever != "bm25" and not self.data_dir:
            raise ValueError(
                f"retriever={self.retriever!r} needs data_dir: a generated world has its own passages, "
                "which BM25 searches"
            )


Options = SearchQaOptions  # the name under which `envs.lookup` finds them


class WorldTasks(Sequence[Task]):
    """The generated tasks of a split, made when asked for; the types take turns."""

    def __init__(self, options: SearchQaOptions, split: str) -> None:
        self._options, self._split = options, split

    def __len__(self) -> int:
        return self._options.num_train if self._split == "train" else self._options.num_valid

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self._task(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"task {index} of {len(self)}")
        return self._task(index % len(self))

    def _task(self, index: int) -> Task:
        block, place = divmod(index, self._options.tasks_per_world)
        world = self._options.seed * _WORLDS + _FIRST_WORLD[self._split] + block
        question = make_world(world).questions[place]
        return Task(f"{self._split}/{world}/{place}", question.kind, self._split, world, question.to_json())


def tasks(options: SearchQaOptions, split: str) -> Sequence[Task]:
    """The tasks of a split: the questions of the data folder, the data sets in turn, or generated ones.

    Raises:
      ValueError: there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not one of {SPLITS}")
    if not options.data_dir:
        return WorldTasks(options, split)
    by_dataset: dict[str, list[Task]] = {name: [] for name in options.datasets}
    for id_, question in load_questions(options.data_dir)[split].items():
        if question.dataset in by_dataset:
            task = Task(id_, question.dataset, split, 0, question.to_json())
            by_dataset[question.dataset].append(task)
    turns = itertools.zip_longest(*by_dataset.values())
    return [task for turn in turns for task in turn if task is not None]


@functools.lru_cache(maxsize=32)
def _world_retriever(world: int) -> Retriever:
    return Bm25Retriever(make_world(world).passages)


@functools.lru_cache(maxsize=1)
def data_retriever(kind: str, data_dir: str) -> Retriever:
    """The retriever `kind`, `bm25` or `recorded`, over the corpora of a folder; kept for the next call."""
    passages = (p for path in corpus_files(pathlib.Path(data_dir)) for p in read_passages(path))
    if kind == "recorded":
        return RecordedRetriever(pathlib.Path(data_dir) / RECORD, passages)
    return Bm25Retriever(passages)


def retriever_of(options: SearchQaOptions, task: Task) -> Retriever:
    """The retriever of a task; indices are kept for the next task."""
    if not options.data_dir:
        return _world_retriever(task.seed)
    if options.retriever == "http":
        return HttpRetriever(
            options.retriever_url, timeout_s=options.timeout_s_of_search, retries=options.retries
        )
    return data_retriever(options.retriever, options.data_dir)


class SearchQaEnv:
    """One question at a time; implements `envs.base.Env`.

    `info` holds `valid` (the reply had an action). An episode is done with the first answer, or after
    `max_turns` replies and one more, in which a search finds nothing any more.
    """

    def __init__(self, options: SearchQaOptions) -> None:
        self._options = options

    def reset(self, task: Task) -> Observation:
        """See `Env.reset`."""
        self._question = Question.from_json(task.source)
        self._retriever = retriever_of(self._options, task)
        self._spec = verifier.specify(self._question, self._options.reward)
        self._history = [verifier.Moment()]
        self._text: list[str] = []  # what is scored: replies as they were cut, and answers to them
        self._done = False
        turns = self._options.max_turns + 1
        self._memory = expert.Memory(self._question.text, turns, self._options.reward == "format")
        return Observation(ask(self._question.text, _PROMPTS[self._options.prompt]))

    def step(self, action: str) -> StepResult:
        """See `Env.step`. After the end nothing changes any more.

        Raises:
          RetrievalError: the retrieval server fails.
        """
        if self._done:
            self._history.append(verifier.idle(self._history[-1]))
            return StepResult(Observation(""), True, {"valid": False})
        taken = read_reply(action)
        last = len(self._history) > self._options.max_turns
        passages = []
        if taken.kind == SEARCH and not last:
            passages = self._retriever.search(taken.content, self._options.topk)
        told = {
            SEARCH: information(documents(passages, limit=self._options.max_information)),
            ANSWER: "",
            "": CORRECTION,
        }[taken.kind]
        scored = foreign(told) if taken.kind == "" else told
        self._text += [taken.reply, scored]
        self._history.append(verifier.observe(self._spec, self._history[-1], taken, passages, scored))
        expert.notice(self._memory, taken.content if taken.kind == SEARCH else None, told)
        self._done = last or taken.kind == ANSWER
        return StepResult(Observation(told), self._done, {"valid": taken.kind != ""})

    def record(self) -> VerifierRecord:
        """See `Env.record`."""
        scorer = score.score_em if self._options.reward == "em" else score.score_format
        value = scorer("".join(self._text), self._question.answers)
        return verifier.record(self._spec, self._history, value)

    def expert_action(self) -> str:
        """See `Env.expert_action`."""
        if self._options.data_dir:
            return expert.read_real(self._memory, self._question)
        return expert.read_world(self._memory)

    def close(self) -> None:
        """See `Env.close`; nothing is held."""


def _walk(options: SearchQaOptions, task: Task) -> tuple[list[str], list[str]]:
    """An episode of the expert: its actions, and everything that was said."""
    env, actions, done = SearchQaEnv(options), list[str](), False
    said = [env.reset(task).text]
    while not done:
        actions.append(env.expert_action())
        result = env.step(actions[-1])
        said += [actions[-1], result.observation.text]
        done = result.done
    return actions, said


def corpus(options: SearchQaOptions) -> list[str]:
    """Texts of training tasks, walked by the expert, and the correction."""
    chosen = tasks(options, "train")
    step = max(1, len(chosen) // _CORPUS_TASKS)
    walked = (_walk(options, chosen[i])[1] for i in range(0, len(chosen), step))
    return [CORRECTION, *(text for said in walked for text in said)]


def max_steps(options: SearchQaOptions) -> int:
    """See `Domain.max_steps`."""
    return options.max_turns + 1


def mutations(options: SearchQaOptions, task: Task) -> Mapping[str, Sequence[str]]:
    """See `Domain.mutations`. Wrong answers are titles of the world, or of passages that the expert saw."""
    question = Question.from_json(task.source)
    actions, _ = _walk(options, task)
    passages = (
        retriever_of(options, task).search(question.text, options.topk)
        if options.data_dir
        else make_world(task.seed).passages
    )
    others = [name for name in names_in(passages) if not score.exact_match(name, question.answers)]
    graded = options.reward == "format"
    return question_mutations(question, actions, [*others, "nobody knows"], thoughts=graded)


def manifest(options: SearchQaOptions, splits: Sequence[str]) -> Mapping[str, str]:
    """See `Domain.manifest`: the question files, and what the retriever reads here."""
    if not options.data_dir:
        return {}
    folder = pathlib.Path(options.data_dir)
    paths = [path for path, _ in question_files(folder)]
    if options.retriever != "http":
        paths += corpus_files(folder)
    if options.retriever == "recorded":
        paths.append(folder / RECORD)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def guide(options: SearchQaOptions) -> str:
    """See `Domain.guide`."""
    return (
        f"You answer a question with the help of a search engine. An action is <{SEARCH}> query </{SEARCH}>, "
        f"which shows passages, or <{ANSWER}> answer </{ANSWER}>, which ends it; an answer is a few words, "
        f"without a sentence around it. There are at most {options.max_turns} searches."
    )


DOMAIN = Domain(
    name="search_qa",
    make=SearchQaEnv,
    tasks=tasks,
    splits=SPLITS,
    aggregate=verifier.aggregate,
    atom_params=verifier.ATOM_PARAMS,
    max_atoms=verifier.MAX_ATOMS,
    max_variables=verifier.MAX_VARIABLES,
    max_steps=max_steps,
    corpus=corpus,
    mutations=mutations,
    manifest=manifest,
    no_op=f"<{THINK}></{THINK}><{SEARCH}></{SEARCH}>",
    guide=guide,
    notes=notes,
)
