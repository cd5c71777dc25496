"""The scripts of `guided`: they reach what they are made for, and a few of them are tried."""

import random

import pytest

from tests.fuzz.scripts import SENT, actions_of, seeds
from tests.fuzz.test_connection import Again, Send, Settle, Swap, Wait, opened, run


def test_every_method_is_among_the_first_inputs() -> None:
    actions = [action for seed in seeds() for action in actions_of(seed)]
    sent = {action.octets[7:11] for action in actions if isinstance(action, Send)}
    for cls in SENT:
        assert bytes([0, cls.class_id, 0, cls.method_id]) in sent, cls.name


@pytest.mark.rounds(1)
def test_any_bytes_are_a_script(seed: int) -> None:
    drawn = random.Random(seed)
    scripts = [actions_of(drawn.randbytes(drawn.randrange(300))) for _ in range(300)]
    assert {type(each) for script in scripts for each in script} == {
        Send,
        Wait,
        Again,
        Settle,
        Swap,
    }


@pytest.mark.rounds(1)
def test_some_scripts_are_tried(seed: int) -> None:
    drawn = random.Random(seed)
    for number in range(60):
        script = actions_of(drawn.randbytes(drawn.randrange(200)))
        run(script, opened, politely=number % 2 == 0)
