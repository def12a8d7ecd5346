"""Checks a folder of search-QA data before a model is trained on it.

    python -m envs.search_qa.importer --data-dir DIR [--retriever http --retriever-url URL]

Counts the questions of each data set and the passages of each corpus, compares known files by SHA-256 and
known test sets by size, and searches: the title of a passage must find that passage, a sentence of it must
find it too, and queries of a retrieval log must find what was logged. Exits with 1 and one line for each
mistake.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import hashlib
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence

from envs.search_qa.data import (
    DATASETS,
    SPLITS,
    Passage,
    Question,
    corpus_files,
    load_questions,
    question_files,
    read_passages,
    read_questions,
)
from envs.search_qa.domain import RECORD, Options, data_retriever
from envs.search_qa.retrieval import HttpRetriever, RecordedRetriever, RetrievalError, Retriever

# Sizes of the seven test sets in FlashRAG's conversion, which Search-R1 evaluates on.
TEST_SIZES = {
    "nq": 3610,
    "triviaqa": 11313,
    "popqa": 14267,
    "hotpotqa": 7405,
    "2wikimultihopqa": 12576,
    "musique": 2417,
    "bamboogle": 125,
}
# Files that this project was tested with, by name.
KNOWN_SHA256 = {
    "bamboogle.jsonl": "ba4edcc83a99196cbcce4209b358b1cdf99f55236411df916a39a3df50e4f4a7",
    "nq_open_dev_3610.jsonl": "cdb5b2a2ed87dde6c288e3cd3806c4ca0bedcacdbff7311fc0977765ff4661d7",
    "corpus_mini.jsonl": "fb6ed1f78c9cc0b42c9befec35d66a24732bde92890b1f6d743e7582677d43c9",
    "e5_retrieval_log.jsonl": "23cb76d96ec4733badaa269fb3de9edf8b489910a1cce5131f933390c8141e09",
}
_PROBES = 20
_LEAST_FOUND = 0.9
_WORDS_OF_A_PROBE = 12


@dataclasses.dataclass
class Report:
    """What was found: lines for people, and the mistakes among them."""

    lines: list[str] = dataclasses.field(default_factory=list)
    mistakes: list[str] = dataclasses.field(default_factory=list)

    def say(self, line: str) -> None:
        """Something that is as it should be."""
        self.lines.append(f"  ok   {line}")

    def note(self, line: str) -> None:
        """Something worth knowing."""
        self.lines.append(f"  note {line}")

    def fail(self, line: str) -> None:
        """A mistake."""
        self.lines.append(f"  FAIL {line}")
        self.mistakes.append(line)

    def attempt(self, check: Callable[[Report], None]) -> None:
        """Run a check; what it cannot read is a mistake."""
        try:
            check(self)
        except (ValueError, OSError, RetrievalError) as error:
            self.fail(str(error))


def check_data(options: Options) -> Report:
    """Check the folder `options.data_dir`, and the retriever that the options name."""
    report, folder = Report(), pathlib.Path(options.data_dir)
    if not folder.is_dir():
        report.fail(f"{folder} is not a folder: give the one with the question files")
        return report
    report.attempt(lambda r: _check_questions(r, folder))
    report.attempt(lambda r: _check_splits(r, options.data_dir))
    report.attempt(lambda r: _check_known(r, folder))
    if options.retriever == "http":
        report.attempt(lambda r: _check_server(r, options))
    else:
        report.attempt(lambda r: _check_corpus(r, options))
    return report


def _check_questions(report: Report, folder: pathlib.Path) -> None:
    for path, split in question_files(folder):
        report.attempt(lambda r, path=path, split=split: _check_file(r, path, split))  # type: ignore[misc]


def _check_file(report: Report, path: pathlib.Path, split: str) -> None:
    questions = read_questions(path)
    if not questions:
        report.fail(f"{path} has no question")
        return
    sets = collections.Counter(question.dataset for question in questions)
    facts = sum(bool(question.facts) for question in questions)
    where = f"split {split}" if split else "no split: divided by a hash"
    counts = ", ".join(f"{count} {name}" for name, count in sets.items())
    report.say(f"{path.name}: {counts}; {facts} with supporting facts; {where}")
    double = [id_ for id_, count in collections.Counter(q.id for q in questions).items() if count > 1]
    if double:
        report.fail(f"{path}: {len(double)} ids are used more than once, first {double[0]!r}")
    for name, count in sets.items():
        if path.stem == "test" and count != TEST_SIZES[name]:
            report.note(f"{path}: {count} questions; the whole test set of {name} has {TEST_SIZES[name]}")


def _check_splits(report: Report, data_dir: str) -> None:
    splits = load_questions(data_dir)
    for split in SPLITS:
        counts = collections.Counter(question.dataset for question in splits[split].values())
        if counts:
            told = ", ".join(f"{counts[name]} {name}" for name in DATASETS if counts[name])
            report.say(f"split {split}: {told}")
        else:
            report.fail(f"split {split!r} has no question: add files for it, or files without a split")


def _check_known(report: Report, folder: pathlib.Path) -> None:
    for name, expected in KNOWN_SHA256.items():
        path = folder / name
        if path.is_file():
            actual = hashlib.sha256(path.read_bytes()).hexdigest()
            if actual == expected:
                report.say(f"{name} is the file that was tested")
            else:
                report.note(f"{name} is not the file that was tested: SHA-256 {actual}, not {expected}")


def _check_corpus(report: Report, options: Options) -> None:
    folder = pathlib.Path(options.data_dir)
    passages = []
    for path in corpus_files(folder):
        read = list(read_passages(path))
        report.say(f"{path.name}: {len(read)} passages")
        passages += read
    ids = collections.Counter(passage.id for passage in passages)
    if double := [id_ for id_, count in ids.items() if count > 1]:
        report.fail(f"{len(double)} passage ids are used more than once, first {double[0]!r}")
    retriever = data_retriever("bm25", options.data_dir)
    _check_search(report, retriever, passages, options.topk)
    facts = {fact for q in _all_questions(options.data_dir) for fact in q.facts}
    names = {passage.name for passage in passages}
    missing = sum(Passage("", fact).name not in names for fact in facts)
    report.note(f"{len(facts) - missing} of {len(facts)} supporting titles have a passage here")
    if (record := folder / RECORD).is_file():
        _check_record(report, record, passages, retriever, options.topk)


def _all_questions(data_dir: str) -> list[Question]:
    return [question for questions in load_questions(data_dir).values() for question in questions.values()]


def _check_search(report: Report, retriever: Retriever, passages: Sequence[Passage], count: int) -> None:
    """A query of a passage's title and of words out of its text must find the passage itself."""
    step = max(1, len(passages) // _PROBES)
    probes = passages[::step][:_PROBES]
    found = [p.id in {hit.id for hit in retriever.search(_probe(p), count)} for p in probes]
    text = f"a query of its own words finds a passage among the first {count} in {sum(found)} of {len(found)}"
    if sum(found) < _LEAST_FOUND * len(found):
        report.fail(f"{text}: the corpus may hold every passage several times, or one in another language")
    else:
        report.say(text)


def _probe(passage: Passage) -> str:
    words = passage.text.split()
    middle = max(0, len(words) // 2 - _WORDS_OF_A_PROBE // 2)
    return " ".join([passage.title, *words[middle : middle + _WORDS_OF_A_PROBE]])


def _check_record(
    report: Report, record: pathlib.Path, passages: Sequence[Passage], retriever: Retriever, count: int
) -> None:
    recorded = RecordedRetriever(record, passages)
    same = total = 0
    for query in recorded.queries:
        logged = {passage.id for passage in recorded.search(query, count)}
        total += len(logged)
        same += len(logged & {passage.id for passage in retriever.search(query, count)})
    share = f"BM25 finds {same / max(1, total):.0%} of what was logged"
    report.say(f"{record.name}: {len(recorded.queries)} queries; {share}")


def _check_server(report: Report, options: Options) -> None:
    """The known query of the retrieval server: Search-R1's own example must find something."""
    retriever = HttpRetriever(
        options.retriever_url, timeout_s=options.timeout_s_of_search, retries=options.retries
    )
    hits = retriever.search("What is the capital of France?", options.topk)
    if len(hits) != options.topk:
        report.fail(f"{options.retriever_url} gives {len(hits)} passages, topk={options.topk} were asked for")
        return
    for hit in hits:
        if not hit.name or not hit.text.strip():
            report.fail(
                f"{options.retriever_url}: contents must be a title, a line break, and text: {hit!r:.100}"
            )
            return
    titles = ", ".join(itertools.islice((hit.title for hit in hits), 3))
    report.say(f"{options.retriever_url} answers; for the capital of France it finds {titles}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Check a folder of search-QA data.")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--retriever", default="bm25", choices=("bm25", "http", "recorded"))
    parser.add_argument("--retriever-url", default="")
    parser.add_argument("--topk", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path, help="where to write the report")
    args = parser.parse_args(arguments)
    try:
        options = Options(
            data_dir=args.data_dir, retriever=args.retriever, retriever_url=args.retriever_url, topk=args.topk
        )
    except ValueError as error:
        parser.error(str(error))
    report = check_data(options)
    print("\n".join([args.data_dir, *report.lines]))
    print(f"{len(report.mistakes)} mistakes" if report.mistakes else "usable")
    if args.json is not None:
        text = json.dumps({"lines": report.lines, "mistakes": report.mistakes}, indent=1)
        args.json.write_text(f"{text}\n", encoding="utf-8")
    return 1 if report.mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
