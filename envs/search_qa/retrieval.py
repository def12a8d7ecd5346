"""From a query to passages: BM25 in this process, Search-R1's retrieval server, or a record of one.

BM25 has the form and the constants of Lucene as Pyserini sets them (k1 0.9, b 0.4), which is Search-R1's
sparse option; words are not stemmed. Source: Robertson and Zaragoza, The Probabilistic Relevance Framework:
BM25 and Beyond, 2009; Kamphuis et al., Which BM25 Do You Mean?, 2020.
"""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import pathlib
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from envs.search_qa.data import Passage, read_rows

K1, B = 0.9, 0.4
# Words of a query that are looked up; the dense retriever of the benchmark reads 256 tokens.
MAX_QUERY_WORDS = 256
_WORD = re.compile(r"\w+")
# Lucene's English stop words.
STOP_WORDS = frozenset(
    _WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their then there "
        "these they this to was will with"
    )
)
_FIRST_PAUSE_S = 0.1


class RetrievalError(Exception):
    """A retrieval server gave no usable answer."""


class Retriever(Protocol):
    """Finds passages; the same query always finds the same ones."""

    def search(self, query: str, count: int) -> list[Passage]:
        """At most `count` passages, the best first. Takes any text."""
        ...


def words_of(text: str) -> list[str]:
    """The words that are indexed and looked up."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


def _bm25s() -> ModuleType:
    """The package bm25s, kept from JAX: it would start JAX's backend on import, in every worker process."""
    if "bm25s" in sys.modules:
        return sys.modules["bm25s"]
    kept = {name: module for name, module in sys.modules.items() if name == "jax" or name.startswith("jax.")}
    for name in kept:
        del sys.modules[name]
    sys.modules["jax"] = None  # type: ignore[assignment]  # makes `import jax` an ImportError
    try:
        module = importlib.import_module("bm25s")
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would tell of every index
        return module
    finally:
        del sys.modules["jax"]
        sys.modules.update(kept)


class Bm25Retriever:
    """BM25 over passages held in memory; of equal scores, the earlier passage is first."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        """Raises ValueError: there is no passage, or none has a word in it."""
        self._passages = list(passages)
        words = [words_of(passage.contents) for passage in self._passages]
        if not any(words):
            raise ValueError(f"{len(self._passages)} passages without a word: nothing can be found in them")
        self._index = _bm25s().BM25(k1=K1, b=B, method="lucene")
        self._index.index(words, show_progress=False)
        self._known = frozenset(self._index.vocab_dict)

    def search(self, query: str, count: int) -> list[Passage]:
        """See `Retriever`. A passage that shares no word with the query is not found."""
        words = [word for word in words_of(query) if word in self._known][:MAX_QUERY_WORDS]
        if not words:
            return []
        scores = np.asarray(self._index.get_scores(words))
        found = np.argsort(-scores, kind="stable")[:count]
        return [self._passages[i] for i in found if scores[i] > 0]


class RecordedRetriever:
    """Answers of another retriever that were written down; a query that is not in the record finds nothing.

    A record has one JSON object a line: `{"query": .., "doc_ids": [..]}`.
    """

    def __init__(self, record: pathlib.Path, passages: Iterable[Passage]) -> None:
        """Raises ValueError: the record names a passage that is not there, or has another form."""
        by_id = {passage.id: passage for passage in passages}
        self._found: dict[str, list[Passage]] = {}
        for number, row in enumerate(read_rows(record), start=1):
            try:
                self._found.setdefault(row["query"].strip(), [by_id[id_] for id_ in row["doc_ids"]])
            except KeyError as error:
                raise ValueError(f"{record}, row {number}: no passage or field {error}") from error

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries of the record, each once."""
        return tuple(self._found)

    def search(self, query: str, count: int) -> list[Passage]:
        """See `Retriever`."""
        return self._found.get(query.strip(), [])[:count]


class HttpRetriever:
    """A client of Search-R1's retrieval server.

    It posts `{"queries": [..], "topk": k, "return_scores": true}` and reads
    `{"result": [[{"document": {"id", "contents"}, "score"}, ..]]}`, or bare documents.

    Args:
      url: of the endpoint, `http://host:8000/retrieve`.
      timeout_s: of one attempt. retries: further attempts after a failed one, with growing pauses between.
    """

    def __init__(self, url: str, *, timeout_s: float = 5.0, retries: int = 2) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"retriever_url={url!r} must begin with http:// or https://")
        self._url, self._timeout_s, self._retries = url, timeout_s, retries

    def search(self, query: str, count: int) -> list[Passage]:
        """See `Retriever`.

        Raises:
          RetrievalError: no attempt got a usable answer; names the address and the last failure.
        """
        failure = ""
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(_FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                return _passages(self._post(query, count))[:count]
            except urllib.error.HTTPError as error:
                failure = f"HTTP status {error.code}"
                if error.code < 500:  # the request itself is refused; asking again changes nothing
                    break
            except (urllib.error.URLError, TimeoutError, ConnectionError, http.client.HTTPException) as error:
                failure = f"{type(error).__name__}: {error}"
            except (ValueError, KeyError, TypeError, IndexError) as error:
                failure = f"an answer of another form ({type(error).__name__}: {error})"
        raise RetrievalError(f"{self._url} gave no passages after {attempt + 1} attempts: {failure}")

    def _post(self, query: str, count: int) -> Any:
        body = {"queries": [query], "topk": count, "return_scores": True}
        request = urllib.request.Request(
            self._url,
            json.dumps(body).encode("utf-8", "replace"),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
            return json.loads(response.read())


def _passages(answer: Any) -> list[Passage]:
    """The passages of the first query, with or without scores."""
    documents = [hit.get("document", hit) for hit in answer["result"][0]]
    return [Passage(str(document["id"]), str(document["contents"])) for document in documents]


def answer_request(retriever: Retriever, body: Any, default_count: int) -> dict[str, Any]:
    """What Search-R1's server answers to the body of a request, from any retriever.

    Raises:
      ValueError: the body is not one that the server takes.
    """
    queries = body.get("queries") if isinstance(body, dict) else None
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError('expected {"queries": [texts], "topk": number, "return_scores": true or false}')
    count = body.get("topk") or default_count
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"topk={count!r} must be a whole number from 1")
    found = [[{"id": p.id, "contents": p.contents} for p in retriever.search(q, count)] for q in queries]
    if body.get("return_scores"):
        # The rank stands for the score: a policy never sees it, and retrievers here have no common scale.
        ranked = [[{"document": d, "score": 1 / (i + 1)} for i, d in enumerate(hits)] for hits in found]
        return {"result": ranked}
    return {"result": found}
