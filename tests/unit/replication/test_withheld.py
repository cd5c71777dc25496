"""A turn of a leader: what answers definitions is withheld until they are committed, and nothing is
sent once another member may lead.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from amqpstore_server.broker.work.agenda import Agenda
from amqpstore_server.broker.work.statistics import BrokerStatistics
from amqpstore_server.loop.loop_limits import LOOP_LIMITS
from amqpstore_server.loop.rounds import LoopRounds


class Connection:
    """A client that defines something in each round, and is answered."""

    def __init__(self) -> None:
        self.is_withheld = False
        self.sent: list[bool] = []
        """Whether a send was withheld, for each time that there was one."""

    def charge(self, seconds: float) -> None:
        assert seconds >= 0

    def withhold(self) -> Callable[[], None]:
        self.is_withheld = True
        return self.release

    def release(self) -> None:
        self.is_withheld = False

    def send_now(self, now: float) -> None:
        assert now
        self.sent.append(self.is_withheld)


class Leads:
    """A turn, and what a leader says to it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.asked_for: list[float] = []
        """Seconds until another round is to come, for each time that one was asked for."""
        self.may_send = True
        definitions = SimpleNamespace(end_group=lambda: None)
        upkeep = SimpleNamespace(free_memory=lambda: False)
        disposal = SimpleNamespace(runs=(), lists=())
        store = SimpleNamespace(definitions=definitions, upkeep=upkeep, disposal=disposal)
        self.agenda = Agenda()
        services: Any = SimpleNamespace(
            store=store,
            agenda=self.agenda,
            statistics=BrokerStatistics(),
            deferred=SimpleNamespace(entries=[]),
        )
        pumping = SimpleNamespace(has_work=False)
        broker: Any = SimpleNamespace(services=services, pumping=pumping)
        sockets: Any = SimpleNamespace(
            read=lambda _now: False,
            charge=lambda _seconds: None,
            wake=lambda: None,
            let_others_run=lambda: None,
            return_in=self.asked_for.append,
        )
        self.committer: Any = SimpleNamespace(
            complete_written=lambda: None, commit=lambda **_: None, has_room=True
        )
        term: Any = SimpleNamespace(
            has_followers=True,
            when_defined=self.waiting.append,
            may_send=lambda: self.may_send,
        )
        self.rounds = LoopRounds(broker, sockets, term, LOOP_LIMITS)

    def round(self, connection: Connection) -> None:
        self.rounds.note_definer(connection)
        self.rounds.note_output(connection)
        self.agenda.has_definitions = True
        self.rounds.run_once(self.committer, 1.0)


def test_an_answer_is_withheld_until_followers_have_what_it_answers() -> None:
    leads, connection = Leads(), Connection()
    leads.round(connection)
    assert connection.sent == [True]
    (release,) = leads.waiting
    release()
    leads.rounds.note_output(connection)
    leads.rounds.run_once(leads.committer, 2.0)
    assert connection.sent == [True, False]


def test_nothing_is_sent_once_another_member_may_lead() -> None:
    leads, connection = Leads(), Connection()
    leads.may_send = False
    leads.round(connection)
    assert connection.sent == []
    # Nothing else may ask for the next round: no client writes, and no batch is under way.
    assert leads.asked_for
    assert 0.0 < max(leads.asked_for) < 0.5
    leads.asked_for.clear()
    leads.may_send = True
    leads.rounds.run_once(leads.committer, 2.0)
    assert connection.sent == [True]
    assert leads.asked_for == []
