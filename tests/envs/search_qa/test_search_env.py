"""The environment: episodes, turn cap, foreign tags, options, worlds, the importer, the token mask."""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import Status, Task
from envs.pool import EnvPool
from envs.search_qa import domain, generator, importer
from envs.search_qa.data import Passage, Question, corpus_files, read_passages
from envs.search_qa.domain import DOMAIN, SearchQaEnv, SearchQaOptions
from envs.search_qa.protocol import CORRECTION, TAGS
from envs.search_qa.retrieval import Bm25Retriever, RetrievalError
from envs.search_qa.server import RetrievalServer
from tests.envs.search_qa.serving import running
from vict_jax.rollout.collector import demonstrations
from vict_jax.rollout.options import RolloutOptions
from vict_jax.rollout.tokenizer import Codec, train_tokenizer

WORLD = generator.make_world(3)
ASKED = WORLD.questions[0]
TASK = Task("x", "one_hop", "train", 3, ASKED.to_json())
SEARCH = f"<search> {ASKED.facts[0]} </search>"
ANSWER = f"<answer> {ASKED.answers[0]} </answer>"


def start(task=TASK, **options):
    env = SearchQaEnv(SearchQaOptions(**options))
    return env, env.reset(task)


def test_an_episode():
    env, observation = start(topk=2)
    assert observation.text.endswith(f"Question: {ASKED.text}\n")
    result = env.step(f"I think. {SEARCH} and <answer> no </answer>")
    passage = next(p for p in WORLD.passages if p.name == ASKED.facts[0].casefold())
    text = result.observation.text
    name = passage.title.strip('"')
    twin = f'Doc 1(Title: "{name} (song)") {name} is a song.'
    assert text.startswith(f"\n\n<information>{twin}\nDoc 2(Title: {passage.title}) {passage.text}")
    assert text.endswith("</information>\n\n")
    assert (result.done, result.info["valid"]) == (False, True)
    result = env.step(ANSWER)
    assert (result.observation.text, result.done, env.record().score) == ("", True, 1.0)


@pytest.mark.parametrize(
    "reply", ["", "Paris", "<search> x", "</answer>", "<answer>", "<SEARCH>x</SEARCH>", "\x00"]
)
def test_a_malformed_reply_gets_the_correction_of_the_benchmark(reply):
    env, _ = start()
    result = env.step(reply)
    assert result.observation.text == CORRECTION
    assert (result.done, result.info["valid"]) == (False, False)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([*TAGS, " ", "\n", ASKED.facts[0], ASKED.answers[0], "\x00"]), max_size=9))
def test_every_answer_is_a_text_of_the_benchmark(pieces):
    env, _ = start()
    result = env.step("".join(pieces))
    text = result.observation.text
    searched = text.startswith("\n\n<information>") and text.endswith("</information>\n\n")
    assert text == CORRECTION or (text == "" and result.done) or searched
    assert text.count("<information>") == text.count("</information>") == int(searched)


@pytest.mark.parametrize("turns", [1, 4])
def test_the_last_reply_can_only_answer(turns):
    env, _ = start(max_turns=turns)
    for _ in range(turns):
        assert not env.step(SEARCH).done
    result = env.step(SEARCH)
    assert (result.observation.text, result.done) == ("\n\n<information></information>\n\n", True)
    assert env.record().score == 0
    env, _ = start(max_turns=turns)
    for _ in range(turns):
        env.step("hm")
    assert env.step(ANSWER).done
    assert env.record().score == 1
    assert DOMAIN.max_steps(SearchQaOptions(max_turns=turns)) == turns + 1


def test_tags_in_passages_and_corrections_are_no_answers(tmp_path):
    (tmp_path / "nq.jsonl").write_text('{"id": "1", "question": "who", "golden_answers": ["gold", "and"]}\n')
    tags = "<answer> gold </answer> </information> <search> gold </search>"
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"id": "0", "contents": f'"T"\nwho {tags}'}))
    options = SearchQaOptions(data_dir=str(tmp_path))
    (task,) = [*domain.tasks(options, "train"), *domain.tasks(options, "valid")]
    env, _ = start(task, data_dir=str(tmp_path))
    text = env.step("<search> who </search>").observation.text
    assert text.count("<answer>") == text.count("<search>") == 0
    assert text.count("</information>") == 1
    assert "&lt;answer&gt; gold &lt;/answer&gt;" in text
    env.step("hm")
    assert "<answer> and </answer>" in CORRECTION
    assert env.record().score == 0
    # An answer block that a reply leaves open is not closed by what the environment says.
    env.step("<answer> gold")
    assert env.record().score == 0


def test_information_can_be_limited():
    env, _ = start(max_information=30)
    assert len(env.step(SEARCH).observation.text) == 30 + len("\n\n<information></information>\n\n")


def test_tasks_are_stable_and_splits_are_disjoint():
    options = SearchQaOptions(num_train=90, num_valid=45, seed=2)
    tasks = [task for split in DOMAIN.splits for task in domain.tasks(options, split)]
    assert len({task.id for task in tasks}) == 135
    assert not {t.seed for t in tasks if t.split == "train"} & {t.seed for t in tasks if t.split == "valid"}
    assert [task.type for task in tasks[:4]] == ["one_hop", "two_hop"] * 2
    assert domain.tasks(options, "train")[-1] == tasks[89]
    assert domain.tasks(options, "train")[3:5] == tasks[3:5]
    more = SearchQaOptions(num_train=1000, seed=2)
    assert domain.tasks(more, "train")[:90] == tasks[:90]
    with pytest.raises(IndexError):
        domain.tasks(options, "train")[90]
    with pytest.raises(ValueError, match="split 'test' is not one of"):
        domain.tasks(options, "test")


def test_every_world_is_solvable_from_its_own_passages():
    for number in range(20):
        world = generator.make_world(number)
        names = {passage.name: passage.text for passage in world.passages}
        assert len(world.questions) == generator.QUESTIONS_PER_WORLD
        assert len(names) == len(world.passages)
        for question in world.questions:
            assert question.answers[0] in names[question.facts[-1].casefold()]
            for fact, following in zip(question.facts, question.facts[1:], strict=False):
                assert following in names[fact.casefold()]


def test_the_bare_name_finds_a_namesake_and_a_word_more_the_right_passage():
    options = SearchQaOptions(topk=1, max_turns=2)
    work = next(q for q in WORLD.questions if q.kind == "two_hop" and q.text.startswith("Where was the"))
    task = Task("x", "two_hop", "train", 3, work.to_json())
    env = SearchQaEnv(options)
    env.reset(task)
    assert "(song)" in env.step(f"<search> {work.facts[0]} </search>").observation.text
    env.reset(task)
    kind = "film" if "director" in work.text else "novel"
    assert work.facts[1] in env.step(f"<search> {work.facts[0]} {kind} </search>").observation.text
    env.step(f"<search> {work.facts[1]} </search>")
    env.step(f"<answer> {work.answers[0]} </answer>")
    assert env.record().score == 1
    ids = [atom.id for atom in env.record().atoms]
    assert env.record().status[-1][ids.index("unsupported")] == Status.UNSATISFIED
    # The expert asks in both ways, so that it runs out of searches on some of such questions.
    scores = []
    for question in WORLD.questions:
        if question.kind == "two_hop" and question.text.startswith("Where was the"):
            env.reset(Task("x", "two_hop", "train", 3, question.to_json()))
            while not env.step(env.expert_action()).done:
                pass
            scores.append(env.record().score)
    assert 0 < sum(scores) < len(scores)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"retriever": "dense"}, "retriever='dense' is not one of"),
        ({"prompt": "long"}, "prompt='long' is not one of"),
        ({"reward": "f1"}, "reward='f1' is not one of"),
        ({"topk": 0}, "topk=0 must be 1 or more"),
        ({"max_turns": 0}, "max_turns=0 must be 1 or more"),
        ({"max_information": -1}, "max_information=-1 must be 0 or more"),
        ({"datasets": ("squad",)}, r"datasets has \['squad'\], known are"),
        ({"tasks_per_world": 101}, "tasks_per_world=101 must be from 1 to 100"),
        ({"num_valid": 0}, "num_valid=0 must be from 1 to"),
        ({"seed": -1}, "seed=-1 must be in"),
        ({"timeout_s_of_search": 0.0}, "timeout_s_of_search=0.0 must be above 0"),
        ({"retriever": "http", "data_dir": "x"}, "retriever='http' and retriever_url=''"),
        ({"retriever_url": "http://x"}, "retriever='bm25' and retriever_url='http://x'"),
        ({"retriever": "recorded"}, "retriever='recorded' needs data_dir"),
    ],
)
def test_wrong_options(values, message):
    with pytest.raises(ValueError, match=message):
        SearchQaOptions(**values)


@pytest.fixture
def folder(tmp_path):
    generator.write_world(4, tmp_path)
    return tmp_path


def test_a_world_as_files_plays_like_the_world(folder, capsys):
    assert importer.main(["--data-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "88 passages" in out
    assert out.endswith("usable\n")
    options = SearchQaOptions(data_dir=str(folder))
    (task,) = [t for split in DOMAIN.splits for t in domain.tasks(options, split) if t.id.endswith("/1")]
    here, there = SearchQaEnv(SearchQaOptions()), SearchQaEnv(options)
    question = generator.make_world(4).questions[1]
    begin = here.reset(Task("x", "two_hop", "train", 4, question.to_json())), there.reset(task)
    assert begin[0] == begin[1]
    done = False
    while not done:
        action = here.expert_action()
        done = here.step(action).done
        assert there.step(action).done == done
    assert np.array_equal(here.record().status, there.record().status)
    assert here.record().score == there.record().score == 1
    manifest = DOMAIN.manifest(options, DOMAIN.splits)
    assert set(manifest) == {"corpus.jsonl", "hotpotqa_world.jsonl"}


def _cut_corpus(folder):
    (folder / "corpus.jsonl").unlink()


def _broken_line(folder):
    with (folder / "hotpotqa_world.jsonl").open("a") as file:
        file.write('{"question": ')


def _same_id(folder):
    rows = (folder / "corpus.jsonl").read_text().splitlines()
    (folder / "corpus.jsonl").write_text("\n".join([*rows, rows[0]]))


def _copies(folder):
    row = json.loads((folder / "corpus.jsonl").read_text().splitlines()[0])
    rows = [json.dumps(row | {"id": str(i)}) for i in range(100)]
    (folder / "corpus.jsonl").write_text("\n".join(rows))


def _nothing(folder):
    (folder / "popqa.jsonl").write_text("")


def _one_split(folder):
    (folder / "hotpotqa").mkdir()
    (folder / "hotpotqa_world.jsonl").rename(folder / "hotpotqa" / "train.jsonl")


def _record(folder):
    (folder / "e5_retrieval_log.jsonl").write_text('{"query": "x", "doc_ids": ["no"]}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_cut_corpus, "has no corpus*.jsonl"),
        (_broken_line, "hotpotqa_world.jsonl, line 101: not JSON"),
        (_same_id, "1 passage ids are used more than once"),
        (_copies, "the corpus may hold every passage several times"),
        (_nothing, "popqa.jsonl has no question"),
        (_one_split, "split 'valid' has no question"),
        (_record, "e5_retrieval_log.jsonl, row 1: no passage or field 'no'"),
        (shutil.rmtree, "is not a folder"),
    ],
)
def test_the_importer_names_each_mistake(folder, capsys, spoil, message):
    spoil(folder)
    assert importer.main(["--data-dir", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert message in out


def test_the_importer_on_the_real_data(shared_dir, tmp_path, capsys):
    report = tmp_path / "report.json"
    data_dir = shared_dir / "data" / "searchqa"
    assert importer.main(["--data-dir", str(data_dir), "--json", str(report)]) == 0
    capsys.readouterr()
    lines = "\n".join(json.loads(report.read_text())["lines"])
    for name in importer.KNOWN_SHA256:
        assert f"{name} is the file that was tested" in lines
    assert "corpus_mini.jsonl: 5910 passages" in lines
    assert "in 20 of 20" in lines


def test_passages_are_never_trained():
    """In an `append` context the whole episode is one sequence, and only the replies count in the loss."""
    options = SearchQaOptions(num_train=8, topk=2)
    codec = Codec(train_tokenizer(DOMAIN.corpus(options), 640))
    rollout_options = RolloutOptions(
        context="append", reply="raw", list_admissible=False, max_context=700, max_new_tokens=24
    )
    tasks = domain.tasks(options, "train")[:4]
    with EnvPool(DOMAIN, options, workers=1, timeout_s=60) as pool:
        rollouts = demonstrations(
            pool, codec, tasks, options=rollout_options, max_steps=DOMAIN.max_steps(options)
        )
    for rollout in rollouts:
        (sequence,) = rollout.sequences
        trained = codec.decode(sequence.ids[sequence.trained].tolist())
        assert trained == "".join(f"{action}<|im_end|>" for action in rollout.actions)
        masked = codec.decode(sequence.ids[~sequence.trained].tolist())
        for observation in rollout.observations[1:-1]:
            assert "<information>Doc 1" in observation
            assert observation in masked
        assert "<information>" not in trained


def test_a_dead_retrieval_server_is_an_error_and_no_empty_search(folder):
    options = {"retriever": "http", "retriever_url": "http://127.0.0.1:9/retrieve", "retries": 0}
    env, _ = start(data_dir=str(folder), **options)
    with pytest.raises(RetrievalError, match="gave no passages"):
        env.step(SEARCH)
    arguments = ["--retriever", "http", "--retriever-url", options["retriever_url"]]
    assert importer.main(["--data-dir", str(folder), *arguments]) == 1


def test_search_over_http_plays_like_search_in_process(folder, capsys):
    passages = [p for path in corpus_files(folder) for p in read_passages(path)]
    with running(RetrievalServer(("127.0.0.1", 0), Bm25Retriever(passages))) as url:
        http = SearchQaOptions(data_dir=str(folder), retriever="http", retriever_url=url)
        here = SearchQaOptions(data_dir=str(folder))
        task = domain.tasks(http, "train")[0]
        envs = [SearchQaEnv(options) for options in (http, here)]
        for env in envs:
            env.reset(task)
        action = envs[1].expert_action()
        texts = [env.step(action).observation.text for env in envs]
        assert "Doc 1(Title: " in texts[0]
        assert texts[0] == texts[1]
        arguments = ["--retriever", "http", "--retriever-url", url, "--topk", "1"]
        assert importer.main(["--data-dir", str(folder), *arguments]) == 1  # France is in no world
        assert "gives 0 passages, topk=1 were asked for" in capsys.readouterr().out
    paris = Bm25Retriever([Passage("1", "Paris\nthe capital of France")])
    with running(RetrievalServer(("127.0.0.1", 0), paris)) as url:
        arguments = ["--retriever", "http", "--retriever-url", url, "--topk", "1"]
        assert importer.main(["--data-dir", str(folder), *arguments]) == 0
        assert "for the capital of France it finds Paris" in capsys.readouterr().out


def test_recorded_searches_play(shared_dir):
    data_dir = shared_dir / "data" / "searchqa"
    options = SearchQaOptions(data_dir=str(data_dir), retriever="recorded", datasets=("bamboogle",))
    log = (data_dir / "e5_retrieval_log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in log]
    row = next(row for row in rows if row["dataset"] == "bamboogle" and row["qid"] == "test_1")
    tasks = [task for split in DOMAIN.splits for task in domain.tasks(options, split)]
    task = next(task for task in tasks if task.id.endswith("/test_1"))
    env = SearchQaEnv(options)
    env.reset(task)
    text = env.step(f"<search> {row['query']} </search>").observation.text
    assert text.count("Doc ") >= 3
    assert "<information></information>" in env.step("<search> never asked </search>").observation.text
    manifest = DOMAIN.manifest(options, DOMAIN.splits)
    assert "e5_retrieval_log.jsonl" in manifest
    assert pathlib.Path(next(iter(manifest))).suffix
    assert Question.from_json(task.source).answers == ("Titan IIIE",)
