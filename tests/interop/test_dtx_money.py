"""Money moves between SQLite and two queues through a crash at every step (J03).

The broker and the example are processes of their own. One of them is killed with SIGKILL, or an
answer on its way is lost; what is left goes on, or is started again. In the end the sum of money
is what it was, each order has exactly one receipt, and nothing is in doubt: see `Money.check`.
"""

import queue
import random

import pytest

from tests.broker_process import BrokerProcess
from tests.interop.money_example import Example, Money
from tests.interop.relay import Relay
from tests.money_transfer.steps import STEPS

REPLIES = {
    "select-ok": b"\x00\x64\x00\x0b",
    "start-ok": b"\x00\x64\x00\x15",
    "end-ok": b"\x00\x64\x00\x1f",
    "prepare-ok": b"\x00\x64\x00\x29",
    "commit-ok": b"\x00\x64\x00\x33",
    "rollback-ok": b"\x00\x64\x00\x3d",
    "recover-ok": b"\x00\x64\x00\x51",
}
DEATHS = [
    *((step,) for step in STEPS if step != "in-doubt-decided"),
    ("branch-prepared", "in-doubt-listed", "in-doubt-decided"),
    ("decided", "in-doubt-listed", "in-doubt-decided"),
    ("branch-committed", "in-doubt-listed", "branch-prepared", "connected", "decided"),
]


@pytest.fixture
def money(tmp_path: object, name: str) -> Money:
    return Money(f"{tmp_path}/ledger.db", name)


def test_nothing_is_killed(url: str, money: Money) -> None:
    money.publish_orders(url)
    lines = money.run(url)
    assert lines[-1] == "5 orders settled"
    assert lines[-3:-1] == [f"{'alice':20} {9798:12} cents", f"{'bob':20} {399:12} cents"]
    money.check(url)


@pytest.mark.parametrize("deaths", DEATHS, ids="-then-".join)
def test_the_example_is_killed_and_started_again(
    url: str, money: Money, deaths: tuple[str, ...]
) -> None:
    money.publish_orders(url)
    for step in deaths:
        money.run_until_killed(url, step)
    money.run(url)
    money.check(url)


@pytest.mark.long
def test_the_broker_is_killed_at_every_step(broker: BrokerProcess, money: Money) -> None:
    money.publish_orders(broker.url)
    pauses = [argument for step in STEPS for argument in ("--pause-at", step)]
    paused = set()
    with (
        Relay(broker.url) as relay,
        Example(relay.url, money, ["--idle-s", "0.5", "--retry-s", "110", *pauses]) as example,
    ):
        for line in example.lines():
            word, _, step = line.partition(" ")
            if word == "at":
                paused.add(step)
                broker.kill()
                broker.start()
                relay.target(broker.url)
                example.go_on()
        assert example.exit_code() == 0, money.log()
    assert paused == STEPS.keys()
    money.check(broker.url)


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param(False, id="with-the-connection"),
        pytest.param(True, id="with-the-broker", marks=pytest.mark.long),
    ],
)
def test_every_answer_is_lost_once(broker: BrokerProcess, money: Money, killed: bool) -> None:
    """The request of a lost answer was carried out, or not; the example cannot know."""
    money.publish_orders(broker.url)
    kept = dict(REPLIES)
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()

    def lose(octets: bytes) -> bytes:
        for reply, index in kept.items():
            if index in octets:
                del kept[reply]
                if killed:
                    broker.kill()
                lost.put(reply)
                return b""
        return octets

    with (
        Relay(broker.url, lose) as relay,
        Example(relay.url, money, ["--idle-s", "0.5", "--retry-s", "110"]) as example,
    ):
        for _ in REPLIES:
            lost.get(timeout=60)
            if killed:
                broker.start()
                relay.target(broker.url)
        lines = list(example.lines())
        assert example.exit_code() == 0, (lines, money.log())
    money.check(broker.url)


def test_two_ledgers_decide_their_own_branches(url: str, money: Money, tmp_path: object) -> None:
    other = Money(f"{tmp_path}/other.db", f"{money.orders}.other")
    for one in (money, other):
        one.publish_orders(url)
        one.run_until_killed(url, "decided")
    for one in (money, other):
        assert sum("in doubt" in line for line in one.run(url)) == 1
        one.check(url)


@pytest.mark.long
@pytest.mark.rounds(3)
def test_both_are_killed_at_random(broker: BrokerProcess, money: Money, seed: int) -> None:
    generator = random.Random(seed)
    money.publish_orders(broker.url, count=40)
    with Relay(broker.url) as relay:
        for _ in range(25):
            with Example(relay.url, money, ["--idle-s", "0.5", "--retry-s", "110"]) as example:
                lines = example.lines()
                for _ in range(generator.randint(0, 4)):
                    next(lines, "")
                victim = generator.choice(["broker", "example", "both"])
                if victim != "broker":
                    example.kill()
                if victim != "example":
                    broker.kill()
                    broker.start()
                    relay.target(broker.url)
                for _ in range(generator.randint(0, 2)):
                    next(lines, "")
        money.run(relay.url)
    money.check(broker.url)
