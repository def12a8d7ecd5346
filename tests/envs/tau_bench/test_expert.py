"""The expert on generated tasks: it wins, from any point, and knows no more than was said."""

from __future__ import annotations

import random

import pytest

from envs.tau_bench import expert, generator, moves
from envs.tau_bench.data import Call
from envs.tau_bench.domain import DOMAIN, Options, TauBenchEnv
from envs.tau_bench.expert import DONE, SORRY, WHO, Memory


@pytest.mark.parametrize("style", ["compact", "json"])
@pytest.mark.parametrize("domain", list(generator.TYPES))
def test_it_wins_every_task(domain: str, style: str) -> None:
    options = Options(domain=domain, style=style, num_dev=60, score="procedure")
    env = TauBenchEnv(options)
    for task in DOMAIN.tasks(options, "dev"):
        env.reset(task)
        while not (result := env.step(env.expert_action())).done:
            assert result.info["valid"]
        assert env.record().score == 1, task.id


@pytest.mark.parametrize("domain", list(generator.TYPES))
def test_it_goes_on_after_reads_that_it_did_not_make(domain: str) -> None:
    options = Options(domain=domain, num_dev=30)
    env, rng = TauBenchEnv(options), random.Random(0)
    for task in DOMAIN.tasks(options, "dev"):
        observation, done = env.reset(task), False
        while not done:
            reads = [text for text in observation.admissible if text.startswith(("Get", "Search", "Find"))]
            action = rng.choice(reads) if reads and rng.random() < 0.3 else env.expert_action()
            result = env.step(action)
            observation, done = result.observation, result.done
        assert env.record().score == 1, task.id


def test_it_asks_before_it_reads() -> None:
    memory = Memory("What did I pay for order #W12?")
    assert expert.decide("retail", memory) is WHO
    memory.past.append((WHO, "Ann Li, zip 941."))
    find = expert.decide("retail", memory)
    assert (find.name, find.kwargs["last_name"]) == ("find_user_id_by_name_zip", "Li")
    memory.past.append((find, "ann_li_3"))
    read = expert.decide("retail", memory)
    assert read.kwargs == {"order_id": "#W12"}
    memory.past.append((read, '{"payment_history": [{"amount": 85}]}'))
    assert expert.decide("retail", memory).kwargs == {"content": "You paid 85."}


def test_it_gives_up_where_a_read_fails() -> None:
    memory = Memory("Cancel order #W12, no longer needed.")
    memory.past.append((WHO, "Ann Li, zip 941."))
    find = expert.decide("retail", memory)
    memory.past.append((find, "ann_li_3"))
    memory.past.append((Call("get_order_details", {"order_id": "#W12"}), "Error: order not found"))
    assert expert.decide("retail", memory) is SORRY


def test_a_no_is_no_yes() -> None:
    memory = Memory("Cancel order #W12, no longer needed.")
    memory.past.append((WHO, "Ann Li, zip 941."))
    memory.past.append((expert.decide("retail", memory), "ann_li_3"))
    memory.past.append((expert.decide("retail", memory), '{"status": "pending"}'))
    asked = expert.decide("retail", memory)
    memory.past.append((asked, "no"))
    assert expert.decide("retail", memory).kwargs == asked.kwargs
    memory.past.append((asked, "yes"))
    cancel = expert.decide("retail", memory)
    assert cancel.name == "cancel_pending_order"
    memory.past.append((cancel, "{}"))
    assert expert.decide("retail", memory) is DONE


def test_a_message_in_another_form_is_not_understood() -> None:
    with pytest.raises(ValueError, match="does not understand the customer: 'Hi'"):
        expert.decide("retail", Memory("Hi"))


@pytest.mark.parametrize("domain", list(generator.TYPES))
def test_moves_hold_what_the_expert_does_before_it_ends(domain: str) -> None:
    """So that random play meets right and wrong writes."""
    options = Options(domain=domain, num_dev=30)
    env, found = TauBenchEnv(options), 0
    for task in DOMAIN.tasks(options, "dev"):
        observation, done = env.reset(task), False
        while not done:
            action = env.expert_action()
            assert len(observation.admissible) == len(set(observation.admissible))
            found += action in observation.admissible
            result = env.step(action)
            observation, done = result.observation, result.done
    assert found > 60
    assert len(moves.moves(domain, Memory("Hello."))) == 4
