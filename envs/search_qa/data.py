"""Questions and passages: the formats of the seven data sets, retrieval corpora, and where they lie.

A question file is recognised by the fields of its rows, so the files of the data sets' authors, FlashRAG's
conversions and Search-R1's training rows are all read as they are. A corpus has one JSON object a line,
`{"id": .., "contents": "\\"Title\\"\\ntext"}`, as Search-R1's retrieval server reads it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

DATASETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
SPLITS = ("train", "valid")
# Most supporting facts (different titles) that a question of these data sets has; 2WikiMultiHopQA: four.
MAX_FACTS = 6
_SUFFIXES = (".jsonl", ".json", ".parquet")
_SPLIT_FILES = {"train": "train", "dev": "valid", "validation": "valid", "test": "valid"}
# Of files that come without a split, one question in five is for validation.
_VALID_SHARE = 5
_SYNONYMS = {
    "2wiki": "2wikimultihopqa",
    "hotpot": "hotpotqa",
    "trivia": "triviaqa",
    "natural_questions": "nq",
}


@dataclasses.dataclass(frozen=True)
class Passage:
    """A passage of the corpus. `contents`: the title, in quotes or not, on the first line, then the text."""

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line, quotes included, as the benchmark shows it."""
        return self.contents.partition("\n")[0]

    @property
    def text(self) -> str:
        """Everything but the title."""
        return self.contents.partition("\n")[2]

    @property
    def name(self) -> str:
        """The title without its quotes, in one case: what supporting facts are compared by."""
        return title_key(self.title)


@dataclasses.dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
      id: unique in its file. dataset: one of `DATASETS`, or `world` for generated ones.
      text: as the data set has it.
      answers: golden answers, one of which must be given; at least one.
      facts: titles of the passages that support the answer, if the data set says so; no two alike.
      kind: the data set's own type (`bridge`, `comparison`, ...), may be empty.
    """

    id: str
    dataset: str
    text: str
    answers: tuple[str, ...]
    facts: tuple[str, ...] = ()
    kind: str = ""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.answers or not all(answer.strip() for answer in self.answers):
            raise ValueError(f"question {self.id!r} has the golden answers {self.answers!r}, expected texts")
        if len(self.facts) > MAX_FACTS:
            raise ValueError(
                f"question {self.id!r} has {len(self.facts)} supporting titles, above the most, {MAX_FACTS}"
            )

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Question:
        """The question that `to_json` wrote."""
        values = json.loads(line)
        return cls(**values | {"answers": tuple(values["answers"]), "facts": tuple(values["facts"])})


def title_key(title: str) -> str:
    """A title for comparisons."""
    return " ".join(title.replace('"', " ").split()).casefold()


def _texts(value: Any) -> tuple[str, ...]:
    """One text, or a sequence of texts."""
    return (value,) if isinstance(value, str) else tuple(str(item) for item in value)


def _different(titles: Sequence[str]) -> tuple[str, ...]:
    """Each title once, in order."""
    return tuple({title_key(title): title for title in reversed(titles)}.values())[::-1]


def _hotpot_facts(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Supporting titles of HotpotQA and 2WikiMultiHopQA: pairs, or FlashRAG's two columns."""
    facts = row.get("supporting_facts")
    if facts is None:
        return _different(_texts(row.get("supporting_titles", ())))
    return _different(_texts(facts["title"] if isinstance(facts, Mapping) else [title for title, _ in facts]))


def _musique_facts(row: Mapping[str, Any]) -> tuple[str, ...]:
    return _different([p["title"] for p in row.get("paragraphs", ()) if p["is_supporting"]])


def _flashrag(row: Mapping[str, Any]) -> dict[str, Any]:
    metadata = row.get("metadata") or {}
    facts = _hotpot_facts(row) or _hotpot_facts(metadata) or _musique_facts(metadata)
    kind = str(row.get("type", metadata.get("type", "")))
    return {"text": row["question"], "answers": _texts(row["golden_answers"]), "facts": facts, "kind": kind}


def _search_r1(row: Mapping[str, Any]) -> dict[str, Any]:
    """Search-R1's training rows; the question stands behind the instruction unless a column holds it."""
    text = row.get("question") or row["prompt"][0]["content"].rpartition("Question: ")[2].strip()
    facts = _hotpot_facts(row.get("metadata") or {})
    return {"text": text, "answers": _texts(row["reward_model"]["ground_truth"]["target"]), "facts": facts}


def _musique(row: Mapping[str, Any]) -> dict[str, Any]:
    answers = (row["answer"], *row["answer_aliases"])
    return {"text": row["question"], "answers": tuple(dict.fromkeys(answers)), "facts": _musique_facts(row)}


def _triviaqa(row: Mapping[str, Any]) -> dict[str, Any]:
    answer = row["Answer"] if "Answer" in row else row["answer"]
    lower = {key.lower(): value for key, value in answer.items()}
    answers = (lower["value"], *lower["aliases"])
    return {"text": row.get("Question") or row["question"], "answers": tuple(dict.fromkeys(answers))}


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of rows: the fields that a row must have, and how it becomes fields of a `Question`."""

    name: str
    fields: frozenset[str]
    read: Callable[[Mapping[str, Any]], dict[str, Any]]
    matches: Callable[[Mapping[str, Any]], bool] = lambda row: True


# The first that fits is taken.
FORMATS = (
    Format("Search-R1", frozenset({"reward_model", "data_source"}), _search_r1),
    Format("FlashRAG", frozenset({"question", "golden_answers"}), _flashrag),
    Format("MuSiQue", frozenset({"question", "answer", "answer_aliases"}), _musique),
    Format(
        "HotpotQA and 2WikiMultiHopQA",
        frozenset({"question", "answer", "supporting_facts"}),
        lambda row: {
            "text": row["question"],
            "answers": _texts(row["answer"]),
            "facts": _hotpot_facts(row),
            "kind": row.get("type", ""),
        },
    ),
    Format(
        "PopQA",
        frozenset({"question", "possible_answers"}),
        lambda row: {"text": row["question"], "answers": _texts(json.loads(row["possible_answers"]))},
    ),
    Format(
        "TriviaQA", frozenset({"Question", "Answer"}), _triviaqa, lambda r: isinstance(r["Answer"], Mapping)
    ),
    Format(
        "TriviaQA", frozenset({"question", "answer"}), _triviaqa, lambda r: isinstance(r["answer"], Mapping)
    ),
    Format(
        "Bamboogle",
        frozenset({"Question", "Answer"}),
        lambda row: {"text": row["Question"], "answers": _texts(row["Answer"])},
    ),
    Format(
        "NQ-open",
        frozenset({"question", "answer"}),
        lambda row: {"text": row["question"], "answers": _texts(row["answer"])},
    ),
)


def recognise(row: Mapping[str, Any]) -> Format:
    """The format of a row.

    Raises:
      ValueError: none fits; names the row's fields and what each format needs.
    """
    for form in FORMATS:
        if form.fields <= row.keys() and form.matches(row):
            return form
    needed = "; ".join(f"{form.name}: {', '.join(sorted(form.fields))}" for form in FORMATS)
    raise ValueError(f"a row with the fields {sorted(row)} has no known format. Known are {needed}")


def dataset_of(path: pathlib.Path, row: Mapping[str, Any] | None = None) -> str:
    """The data set of a row (its field `dataset` or `data_source`), of its folder, or of its file's name.

    Raises:
      ValueError: neither names one of `DATASETS`.
    """
    named = [str(row[key]) for key in ("dataset", "data_source") if row and key in row]
    for name in (*named, path.parent.name, path.stem):
        key = name.lower().replace("-", "_")
        for start, dataset in {**{known: known for known in DATASETS}, **_SYNONYMS}.items():
            if key == start or key.startswith(f"{start}_"):
                return dataset
    raise ValueError(f"{path}: neither a row nor the name says which data set this is, one of {DATASETS}")


def read_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Rows of a JSON-lines file, of a JSON file with a list, or of a Parquet file.

    Raises:
      ValueError: a line is not a JSON object, or the file is not what its name says; names file and line.
    """
    if path.suffix == ".parquet":
        import pyarrow.parquet  # large, and only needed here

        try:
            yield from pyarrow.parquet.read_table(path).to_pylist()
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error
        return
    with path.open(encoding="utf-8") as file:
        if path.suffix == ".json":
            yield from _objects(path, enumerate(_parsed(path, 1, file.read()), start=1))
        else:
            lines = ((n, _parsed(path, n, line)) for n, line in enumerate(file, start=1) if line.strip())
            yield from _objects(path, lines)


def _parsed(path: pathlib.Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}: not JSON ({error.msg}): {text[:60]!r}") from error


def _objects(path: pathlib.Path, rows: Any) -> Iterator[dict[str, Any]]:
    for number, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: expected an object, got {row!r:.60}")
        yield row


def read_questions(path: pathlib.Path) -> list[Question]:
    """All questions of a file, in its order.

    Raises:
      ValueError: a row has no known format, or no golden answer; names the file and the row.
    """
    questions = []
    for number, row in enumerate(read_rows(path), start=1):
        try:
            fields = recognise(row).read(row)
            id_ = next((str(row[key]) for key in ("id", "_id", "question_id") if key in row), f"row_{number}")
            questions.append(Question(id=id_, dataset=dataset_of(path, row), **fields))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path}, row {number}: {error}") from error
    return questions


def question_files(data_dir: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """Question files below a folder, each with its split, "" where the file does not say one.

    FlashRAG's layout is `<data set>/<split>.jsonl`; any other file lies in the folder itself and is named
    after its data set. Corpora and retrieval logs are no question files.

    Raises:
      FileNotFoundError: there is no such folder, or no question file in it.
    """
    if not data_dir.is_dir():
        raise FileNotFoundError(f"data_dir={str(data_dir)!r} is not a folder")
    found = []
    for path in sorted([*data_dir.iterdir(), *data_dir.glob("*/*")]):
        other = path.stem.startswith("corpus") or path.stem.endswith("retrieval_log")
        if path.suffix in _SUFFIXES and not other:
            found.append((path, _SPLIT_FILES.get(path.stem.lower(), "")))
    if not found:
        raise FileNotFoundError(
            f"{data_dir} has no question file: expected <data set>/<split>.jsonl, or files named after "
            f"{DATASETS}, ending in {_SUFFIXES}"
        )
    return found


@functools.lru_cache(maxsize=4)
def load_questions(data_dir: str) -> Mapping[str, Mapping[str, Question]]:
    """All questions below a folder: split -> task id -> question.

    A question that stands in several files of a data set is taken once, with its supporting facts if one of
    them has any. Files without a split are divided by a hash of the question's text, so that no question of
    a data set is in both splits.

    Raises:
      FileNotFoundError, ValueError: see `question_files` and `read_questions`; two questions have one id.
    """
    read = [
        (path, split, question)
        for path, split in question_files(pathlib.Path(data_dir))
        for question in read_questions(path)
    ]
    read.sort(key=lambda item: not item[2].facts)
    first: dict[tuple[str, str], tuple[pathlib.Path, str]] = {}
    splits: dict[str, dict[str, Question]] = {split: {} for split in SPLITS}
    for path, given, question in read:
        key = (question.dataset, title_key(question.text).rstrip("? "))
        split = given or ("train" if zlib.crc32(key[1].encode()) % _VALID_SHARE else "valid")
        if first.setdefault(key, (path, split))[0] != path:
            continue
        task = f"{question.dataset}/{path.stem}/{question.id}"
        if task in splits[split]:
            raise ValueError(f"{path}: two questions have the id {question.id!r}")
        splits[split][task] = question
    return splits


def corpus_files(data_dir: pathlib.Path) -> list[pathlib.Path]:
    """The corpora of a folder, `corpus*.jsonl`. Raises FileNotFoundError if there is none."""
    found = sorted(data_dir.glob("corpus*.jsonl"))
    if not found:
        raise FileNotFoundError(
            f"{data_dir} has no corpus*.jsonl; put one there, or set retriever='http' and retriever_url"
        )
    return found


def read_passages(path: pathlib.Path) -> Iterator[Passage]:
    """The passages of a corpus file. Raises ValueError: a row lacks `id` or `contents`, or has no title."""
    for number, row in enumerate(read_rows(path), start=1):
        if not {"id", "contents"} <= row.keys():
            raise ValueError(f"{path}, row {number}: a passage needs id and contents, found {sorted(row)}")
        passage = Passage(str(row["id"]), str(row["contents"]))
        if not passage.name or not passage.text.strip():
            raise ValueError(f"{path}, row {number}: contents must be a title, a line break, and text")
        yield passage
