"""BM25 against its formula, the HTTP client against servers that misbehave, and real recorded searches."""

from __future__ import annotations

import collections
import contextlib
import http.server
import json
import math
import subprocess
import sys
import time

import pytest

from envs.search_qa import retrieval, server
from envs.search_qa.data import Passage, read_passages, read_rows
from envs.search_qa.generator import make_world
from envs.search_qa.retrieval import Bm25Retriever, HttpRetriever, RecordedRetriever, RetrievalError, words_of
from tests.envs.search_qa.serving import running

PASSAGES = make_world(0).passages


def bm25(passages, query):
    """Lucene's BM25, a sum over the words of the query, in plain loops."""
    texts = [words_of(passage.contents) for passage in passages]
    mean = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    for word in words_of(query):
        having = sum(word in text for text in texts)
        idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for i, text in enumerate(texts):
            count = text.count(word)
            norm = retrieval.K1 * (1 - retrieval.B + retrieval.B * len(text) / mean)
            scores[i] += idf * count / (count + norm)
    return scores


@pytest.mark.parametrize("query", [PASSAGES[3].title, "Where was the director born?", "sailor painter 1947"])
def test_bm25_ranks_by_its_formula(query):
    scores = bm25(PASSAGES, query)
    matching = [i for i, score in enumerate(scores) if score]
    expected = sorted(matching, key=lambda i: (-round(scores[i], 5), i))[:8]
    found = Bm25Retriever(PASSAGES).search(query, 8)
    assert [round(scores[PASSAGES.index(p)], 4) for p in found] == [round(scores[i], 4) for i in expected]


def test_of_equal_passages_the_first_is_first():
    passages = [Passage(str(i), f"T{i}\nthe same words") for i in range(9)]
    assert [p.id for p in Bm25Retriever(passages).search("same words", 4)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("query", ["", "   ", "the of", "\x00", "zzz qqq", "<search>", "☃ 🔧"])
def test_queries_without_a_known_word_find_nothing(query):
    assert Bm25Retriever(PASSAGES).search(query, 3) == []


def test_a_huge_query_is_answered_at_once():
    begin = time.process_time()
    assert len(Bm25Retriever(PASSAGES).search("director born city " * 50_000, 3)) == 3
    assert time.process_time() - begin < 2


def test_a_corpus_without_words_is_refused():
    for passages in ([], [Passage("0", "the\nof a")]):
        with pytest.raises(ValueError, match="without a word"):
            Bm25Retriever(passages)


def test_the_library_does_not_start_jax():
    # It tries to, on import; in a worker process that would take the accelerator.
    code = (
        "import sys; from envs.search_qa.retrieval import Bm25Retriever; "
        "from envs.search_qa.generator import make_world; "
        "Bm25Retriever(make_world(0).passages).search('film', 1); "
        "print('jax' in sys.modules, 'bm25s' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_jax_stays_usable():
    import jax.numpy as jnp

    Bm25Retriever(PASSAGES)
    assert jnp.arange(3).sum() == 3
    assert sys.modules["jax"] is not None


@pytest.fixture(scope="module")
def url():
    with running(server.RetrievalServer(("127.0.0.1", 0), Bm25Retriever(PASSAGES))) as address:
        yield address


def test_over_http_the_same_is_found(url):
    client, here = HttpRetriever(url), Bm25Retriever(PASSAGES)
    for query in ("Who directed it?", PASSAGES[5].title, "", "é ☃ \ud800", "x" * 10_000):
        assert client.search(query, 3) == here.search(query, 3)


class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers with the server's script, one entry a request: a status and a body, or seconds to wait."""

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append(request)
        status, body = self.server.script[min(len(self.server.seen), len(self.server.script)) - 1]
        if status == 0:
            time.sleep(body)
            return
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(retrieval, "_FIRST_PAUSE_S", 0.0)
    with contextlib.ExitStack() as stack:

        def start(*script):
            httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
            httpd.script, httpd.seen = script, []
            return httpd, stack.enter_context(running(httpd))

        yield start


DOCUMENT = {"id": 7, "contents": '"T"\ntext'}
GOOD = {"result": [[{"document": DOCUMENT, "score": 0.5}]]}


def test_the_request_is_the_one_of_the_server_and_both_answers_are_read(scripted):
    httpd, url = scripted((200, GOOD), (200, {"result": [[DOCUMENT, DOCUMENT]]}))
    client = HttpRetriever(url)
    assert client.search("who", 3) == [Passage("7", '"T"\ntext')]
    assert len(client.search("who", 1)) == 1
    assert httpd.seen[0] == {"queries": ["who"], "topk": 3, "return_scores": True}


@pytest.mark.parametrize("bad", [(500, {}), (503, b""), (200, b"<html>"), (200, {"result": []}), (0, 0.4)])
def test_a_failed_attempt_is_repeated(scripted, bad):
    httpd, url = scripted(bad, (200, GOOD))
    assert HttpRetriever(url, timeout_s=0.15).search("who", 3)
    assert len(httpd.seen) == 2


@pytest.mark.parametrize(
    ("answer", "attempts", "message"),
    [
        ((500, {}), 3, "after 3 attempts: HTTP status 500"),
        ((422, {}), 1, "after 1 attempts: HTTP status 422"),
        ((200, {"error": "x"}), 3, "an answer of another form"),
        ((200, {"result": [[{"document": {"id": 1}}]]}), 3, "KeyError: 'contents'"),
        ((200, {"result": [None]}), 3, "another form"),
        ((0, 0.3), 3, "TimeoutError|timed out"),
    ],
)
def test_a_server_that_stays_wrong_is_an_error(scripted, answer, attempts, message):
    httpd, url = scripted(answer)
    with pytest.raises(RetrievalError, match=message):
        HttpRetriever(url, timeout_s=0.1).search("who", 3)
    assert len(httpd.seen) == attempts


def test_no_server(monkeypatch):
    monkeypatch.setattr(retrieval, "_FIRST_PAUSE_S", 0.0)
    with pytest.raises(RetrievalError, match=r"127.0.0.1:9/retrieve gave no passages after 2 attempts"):
        HttpRetriever("http://127.0.0.1:9/retrieve", timeout_s=0.5, retries=1).search("who", 3)
    with pytest.raises(ValueError, match="must begin with http"):
        HttpRetriever("localhost:8000")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "expected"),
        ({"queries": "who"}, "expected"),
        ({"queries": [1]}, "expected"),
        ([], "expected"),
        ({"queries": ["who"], "topk": -1}, "topk=-1"),
        ({"queries": ["who"], "topk": "3"}, "topk='3'"),
    ],
)
def test_the_server_refuses_other_requests(body, message):
    with pytest.raises(ValueError, match=message):
        retrieval.answer_request(Bm25Retriever(PASSAGES), body, 3)


def test_the_server_answers_without_scores_too():
    answer = retrieval.answer_request(Bm25Retriever(PASSAGES), {"queries": ["film", "novel"]}, 2)
    assert [len(hits) for hits in answer["result"]] == [2, 2]
    assert answer["result"][0][0].keys() == {"id", "contents"}


@pytest.fixture(scope="module")
def real(shared_dir):
    folder = shared_dir / "data" / "searchqa"
    return folder / "e5_retrieval_log.jsonl", list(read_passages(folder / "corpus_mini.jsonl"))


def test_recorded_searches_come_back_as_they_were_logged(real):
    record, passages = real
    retriever = RecordedRetriever(record, passages)
    assert len(retriever.queries) == 1650
    for row in read_rows(record):
        assert [p.id for p in retriever.search(row["query"], 3)] == row["doc_ids"]
    assert len(retriever.search(retriever.queries[0], 2)) == 2
    assert retriever.search("a query that nobody made", 3) == []


def test_bm25_agrees_with_the_dense_retriever_on_most_passages(real):
    record, passages = real
    logged, bm25_ = RecordedRetriever(record, passages), Bm25Retriever(passages)
    counts = collections.Counter()
    for query in logged.queries:
        found = {p.id for p in bm25_.search(query, 3)}
        counts.update(p.id in found for p in logged.search(query, 3))
    assert counts[True] / counts.total() == pytest.approx(0.74, abs=0.02)


def test_a_record_of_other_passages_is_refused(tmp_path):
    record = tmp_path / "log.jsonl"
    record.write_text('{"query": "who", "doc_ids": ["1000"]}')
    with pytest.raises(ValueError, match="row 1: no passage or field '1000'"):
        RecordedRetriever(record, PASSAGES)
