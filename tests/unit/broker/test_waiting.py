"""Gets that wait: which is served first, when they end, and that none waits beside a message."""

import contextlib
import random
from collections import Counter

import pytest

from amqpstore_server.broker.channels.confirms import Flags
from amqpstore_server.broker.channels.gets import MAX_WAITING, Gets
from amqpstore_server.broker.errors import PreconditionFailedError
from amqpstore_server.broker.queues.queue import Queue
from amqpstore_server.broker.queues.waiting import Fetched, GetLine
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client, labelled


class Getter(Client):
    """A client whose gets may wait; `answers` are bodies, or None, in the order they came."""

    def __init__(self, simulated: SimulatedBroker) -> None:
        super().__init__(simulated)
        self.answers: list[str | None] = []
        self.queues: list[str] = []
        self.line = Gets(self.channel, self._answer)
        self._vhost = simulated.vhost

    def ask(self, queue: str, wait_ms: int = 1000, *, no_ack: bool = False) -> None:
        self.line.get(self._vhost.queue(queue), no_ack=no_ack, wait_ms=wait_ms)

    def _answer(self, queue: Queue, fetched: Fetched) -> None:
        self.queues.append(queue.name)
        if fetched is None:
            self.answers.append(None)
            return
        self._received("", *fetched)
        self.answers.append(self.got.pop()[1])

    def close(self) -> None:
        self.line.close()
        self.channel.close()


@pytest.fixture
def simulated() -> SimulatedBroker:
    made = SimulatedBroker()
    made.queue("q")
    made.queue("other")
    return made


@pytest.fixture
def getter(simulated: SimulatedBroker) -> Getter:
    return Getter(simulated)


@pytest.fixture
def sender(simulated: SimulatedBroker) -> Client:
    return Client(simulated)


def test_what_is_ready_is_had_at_once(getter: Getter, sender: Client) -> None:
    sender.publish("", "q", "a")
    getter.ask("q")
    assert getter.answers == ["a"]


def test_without_wait_nothing_is_waited_for(getter: Getter) -> None:
    getter.ask("q", 0)
    assert getter.answers == [None]


def test_it_waits_for_a_message(simulated: SimulatedBroker, getter: Getter, sender: Client) -> None:
    getter.ask("q")
    simulated.pass_time(999)
    assert getter.answers == []
    sender.publish("", "q", "a", "b")
    simulated.settle()
    assert getter.answers == ["a"]
    assert simulated.ready("q") == ["b"]
    simulated.pass_time(10_000)
    assert getter.answers == ["a"]
    assert not simulated.services.timers.next_ms


def test_it_ends_empty_when_its_time_is_over(simulated: SimulatedBroker, getter: Getter) -> None:
    getter.ask("q", 500)
    simulated.pass_time(499)
    assert getter.answers == []
    simulated.pass_time(1)
    assert getter.answers == [None]
    assert not simulated.vhost.queue("q").waiting


def test_they_are_served_in_the_order_in_which_they_came(
    simulated: SimulatedBroker, sender: Client
) -> None:
    getters = [Getter(simulated) for _ in range(4)]
    for getter in getters:
        getter.ask("q")
    sender.publish("", "q", "a", "b", "c")
    simulated.settle()
    assert [getter.answers for getter in getters] == [["a"], ["b"], ["c"], []]


def test_a_get_that_does_not_wait_is_behind_those_that_do(
    simulated: SimulatedBroker, sender: Client
) -> None:
    """The message is ready, and the queue has not had its turn yet."""
    first, second = Getter(simulated), Getter(simulated)
    first.ask("q")
    sender.publish("", "q", "a")
    second.ask("q", 0)
    simulated.settle()
    assert (first.answers, second.answers) == (["a"], [None])


def test_the_gets_of_a_channel_are_answered_in_their_order(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    getter.ask("q", 1000)
    getter.ask("other", 5000)
    getter.ask("other", 0)
    sender.publish("", "other", "a", "b")
    simulated.settle()
    assert getter.answers == []
    simulated.pass_time(1000)
    assert getter.answers == [None, "a", "b"]
    assert getter.queues == ["q", "other", "other"]


def test_time_runs_while_a_get_waits_for_its_turn(
    simulated: SimulatedBroker, getter: Getter
) -> None:
    getter.ask("q", 3000)
    getter.ask("other", 1000)
    getter.ask("other", 4000)
    simulated.pass_time(2000)
    assert getter.answers == []
    simulated.pass_time(1000)
    assert getter.answers == [None, None]
    simulated.pass_time(1000)
    assert getter.answers == [None, None, None]


def test_another_may_have_it_first_and_the_wait_goes_on(
    simulated: SimulatedBroker, sender: Client
) -> None:
    """J13: a get that is woken looks again."""
    first, second = Getter(simulated), Getter(simulated)
    first.ask("q")
    second.ask("q")
    sender.publish("", "q", "a")
    simulated.settle()
    assert (first.answers, second.answers) == (["a"], [])
    first.requeue("a")
    simulated.settle()
    assert second.answers == ["a"]
    assert second.redelivered == [True]


def test_gets_are_served_before_consumers_and_one_message_each(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    consumer = Client(simulated)
    consumer.consume("q", "c")
    simulated.settle()
    getter.ask("q")
    sender.publish("", "q", "a", "b", "c")
    simulated.settle()
    assert getter.answers == ["a"]
    assert consumer.bodies("c") == ["b", "c"]


def test_a_prefetch_does_not_count_gets(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    getter.channel.window.messages = 1
    for _ in range(3):
        getter.ask("q")
    sender.publish("", "q", "a", "b", "c")
    simulated.settle()
    assert getter.answers == ["a", "b", "c"]


def test_without_acks_it_is_gone(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    getter.ask("q", no_ack=True)
    sender.publish("", "q", "a")
    simulated.settle()
    getter.close()
    simulated.settle()
    assert getter.answers == ["a"]
    assert simulated.ready("q") == []


def test_a_transaction_wakes_at_its_commit_and_takes_the_ack(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    sender.channel.select_transactions()
    getter.channel.select_transactions()
    getter.ask("q")
    sender.publish("", "q", "a")
    simulated.settle()
    assert getter.answers == []
    sender.channel.commit()
    simulated.settle()
    assert getter.answers == ["a"]
    getter.ack("a")
    getter.channel.rollback()
    getter.close()
    simulated.settle()
    assert simulated.ready("q") == ["a"]


def test_the_highest_priority_goes_first(simulated: SimulatedBroker, sender: Client) -> None:
    simulated.queue("ranked", max_priority=5)
    getters = [Getter(simulated) for _ in range(2)]
    for getter in getters:
        getter.ask("ranked")
    sender.publish("", "ranked", "low", priority=1)
    sender.publish("", "ranked", "high", priority=5)
    simulated.settle()
    assert [getter.answers for getter in getters] == [["high"], ["low"]]


def test_dead_letters_and_what_requeues_wake_too(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    simulated.queue("short", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="q")
    getter.ask("q")
    sender.publish("", "short", "late")
    simulated.settle()
    assert getter.answers == []
    simulated.pass_time(100)
    assert getter.answers == ["late"]


def test_what_expired_is_not_had(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    sender.publish("", "q", "old", expiration="100")
    simulated.clock.advance(100)
    getter.ask("q")
    assert getter.answers == []
    sender.publish("", "q", "at once or never", expiration="0")
    simulated.settle()
    assert getter.answers == ["at once or never"]


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish"])
def test_a_queue_of_length_0_lets_through_what_is_waited_for(
    simulated: SimulatedBroker, getter: Getter, sender: Client, overflow: str
) -> None:
    simulated.queue("none", max_length=0, overflow=overflow)
    sender.channel.select_confirms()
    getter.ask("none")
    sender.publish("", "none", "a", "b")
    simulated.settle()
    assert getter.answers == ["a"]
    assert ("refused 2" in sender.told) == (overflow == "reject-publish")


def test_an_immediate_message_is_for_who_waits(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    getter.ask("q")
    sender.channel.publish(*labelled("", "q", "a", "b"), Flags(immediate=True))
    simulated.settle()
    assert getter.answers == ["a"]
    assert sender.told == ["returned b NO_CONSUMERS"]


def test_a_closed_channel_leaves_nothing_behind(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    getter.ask("q")
    getter.ask("other")
    getter.close()
    sender.publish("", "q", "a")
    simulated.pass_time(5000)
    assert getter.answers == []
    assert simulated.ready("q") == ["a"]
    assert not simulated.vhost.queue("q").waiting
    assert not simulated.services.timers.next_ms


def test_a_deleted_queue_answers_empty(simulated: SimulatedBroker, getter: Getter) -> None:
    """Closing the whole channel would be too much: the next get says that the queue is gone."""
    other = Getter(simulated)
    getter.ask("q")
    getter.ask("q")
    getter.ask("other")
    other.ask("other")
    other.ask("q")
    simulated.vhost.delete_queue(simulated.vhost.queue("q"))
    assert getter.answers == [None, None]
    assert other.answers == []
    simulated.pass_time(1000)
    assert getter.answers == [None, None, None]
    assert other.answers == [None, None]


def test_a_queue_that_is_waited_at_is_in_use(simulated: SimulatedBroker, getter: Getter) -> None:
    simulated.queue("brief", expires=100)
    getter.ask("brief", 1000)
    simulated.pass_time(999)
    assert "brief" in simulated.vhost.queues
    simulated.pass_time(1)
    assert getter.answers == [None]
    simulated.pass_time(99)
    assert "brief" in simulated.vhost.queues
    simulated.pass_time(1)
    assert "brief" not in simulated.vhost.queues


def test_who_reads_nothing_is_passed_over(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    other = Getter(simulated)
    getter.ask("q")
    other.ask("q")
    getter.is_writable = False
    sender.publish("", "q", "a")
    simulated.settle()
    assert (getter.answers, other.answers) == ([], ["a"])
    sender.publish("", "q", "b")
    simulated.settle()
    assert getter.answers == []
    getter.is_writable = True
    getter.line.resume()
    simulated.settle()
    assert getter.answers == ["b"]


def test_so_many_may_wait_on_a_channel(
    simulated: SimulatedBroker, getter: Getter, sender: Client
) -> None:
    for _ in range(MAX_WAITING):
        getter.ask("q")
    with pytest.raises(PreconditionFailedError, match="wait on this channel"):
        getter.ask("q")
    sender.publish("", "q", *map(str, range(MAX_WAITING + 1)))
    simulated.settle()
    assert getter.answers == list(map(str, range(MAX_WAITING)))


def test_long_lines_over_many_queues_are_no_recursion(
    simulated: SimulatedBroker, sender: Client
) -> None:
    """Each answer gives another channel's next get its turn, at a queue that is ready as well."""
    count = 1500
    for number in range(count + 1):
        simulated.queue(f"q{number}", durable=False)
    getters = [Getter(simulated) for _ in range(count)]
    for number, getter in enumerate(getters):
        getter.ask(f"q{number}")
        getter.ask(f"q{number + 1}")
    for number in range(count + 1):
        sender.publish("", f"q{number}", f"{number}a", f"{number}b")
    simulated.settle()
    assert [len(getter.answers) for getter in getters] == [2] * count


class Dice:
    """Channels, queues, messages and times that are drawn by seed."""

    NAMES = ("a", "b", "c")

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"waiting {seed}")
        self.simulated = SimulatedBroker()
        for name in self.NAMES[:2]:
            self.simulated.queue(name)
        self.simulated.queue(self.NAMES[2], max_priority=2)
        self.getters = [Getter(self.simulated) for _ in range(6)]
        self.asked: Counter[int] = Counter()
        self.sender, self.consumer = Client(self.simulated), Client(self.simulated)
        self.published = 0

    def step(self) -> None:
        """Take one random step."""
        steps = [self.ask, self.ask, self.ask, self.publish, self.publish]
        self.rng.choice([*steps, self.read_or_not, self.consume_or_not, self.pass_time])()

    def ask(self) -> None:
        number = self.rng.randrange(len(self.getters))
        for _ in range(self.rng.randint(1, 3)):
            wait_ms = self.rng.choice([0, 5, 50, 500])
            no_ack = self.rng.random() < 0.3
            self.getters[number].ask(self.rng.choice(self.NAMES), wait_ms, no_ack=no_ack)
            self.asked[number] += 1

    def publish(self) -> None:
        bodies = [str(self.published + place) for place in range(self.rng.randint(1, 4))]
        self.published += len(bodies)
        name, priority = self.rng.choice(self.NAMES), self.rng.randrange(3)
        self.sender.publish("", name, *bodies, priority=priority)

    def read_or_not(self) -> None:
        getter = self.rng.choice(self.getters)
        getter.is_writable = not getter.is_writable
        if getter.is_writable:
            getter.line.resume()

    def consume_or_not(self) -> None:
        if self.consumer.channel.consumers:
            self.consumer.channel.cancel("c")
        else:
            self.consumer.consume(self.rng.choice(self.NAMES), "c", no_ack=True)

    def pass_time(self) -> None:
        self.simulated.pass_time(self.rng.choice([1, 10, 100]))

    def finish(self) -> None:
        """Let each getter read, and let the time of each get pass."""
        for getter in self.getters:
            getter.is_writable = True
            getter.line.resume()
        self.simulated.pass_time(1000)


@pytest.mark.parametrize("seed", range(30))
def test_nobody_sleeps_beside_a_message_and_nothing_is_got_twice(seed: int) -> None:
    """No queue ever has both a ready message and a get that could be answered after a turn; in the
    end every get has an answer, and every message is in one place.
    """
    dice = Dice(seed)
    simulated = dice.simulated
    for _ in range(120):
        dice.step()
        if dice.rng.random() < 0.7:
            simulated.settle()
            for queue in simulated.vhost.queues.values():
                assert not (queue.ready_count and queue.waiting.able_count)
    dice.finish()
    for number, getter in enumerate(dice.getters):
        assert len(getter.answers) == dice.asked[number]
    left = [body for name in dice.NAMES for body in simulated.ready(name)]
    had = [body for getter in dice.getters for body in getter.answers if body is not None]
    all_bodies = had + left + dice.consumer.bodies("c")
    assert sorted(all_bodies, key=int) == list(map(str, range(dice.published)))


@pytest.mark.parametrize("bug", ["touch", "answered"])
def test_a_wake_up_that_is_lost_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails on broken copies: a line that is never pumped, and gets never served."""
    if bug == "touch":
        monkeypatch.setattr(GetLine, "pump", lambda self: None)
    else:
        monkeypatch.setattr(Gets, "_serve_first", lambda self: None)
    failures = 0
    for seed in range(3):
        with contextlib.suppress(AssertionError):
            test_nobody_sleeps_beside_a_message_and_nothing_is_got_twice(seed)
            continue
        failures += 1
    assert failures == 3
