"""Random work in random branches beside a model in plain lists, through kills of the broker.

Every get must bring what the model says comes next, every recover list what it has prepared, and
in the end every queue hold what it says, in its order.
"""

import random
from dataclasses import dataclass, field

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from amqpstore_tools.pika import XaResource, XaRolledBackError, XaStatus, Xid
from tests.broker_process import BrokerProcess
from tests.interop.pika_client import PERSISTENT, connect, drain, get

SESSIONS = 3
STEPS = 400
PLAIN, REJECTING, DEAD = "plain", "rejecting", "dead"
QUEUES = (PLAIN, REJECTING, DEAD)
LARGEST_BODY = 9000


@dataclass(frozen=True, order=True)
class Entry:
    """A message and where in its queue it is."""

    position: int
    body: bytes


@dataclass
class Branch:
    xid: Xid
    publishes: list[tuple[str, bytes]] = field(default_factory=list)
    settled: list[tuple[str, Entry, str]] = field(default_factory=list)
    """Messages with their queue, and `ack`, `requeue` or `reject`."""

    @property
    def has_work(self) -> bool:
        return bool(self.publishes or self.settled)

    def given_back(self) -> list[tuple[str, Entry]]:
        """The messages that were requeued, which are not the branch's any more then."""
        given_back = [(queue, entry) for queue, entry, how in self.settled if how == "requeue"]
        self.settled = [one for one in self.settled if one[2] != "requeue"]
        return given_back


class Session:
    """A channel, what it was given and has not settled, and the branch that it works in."""

    def __init__(self, connection: BlockingConnection) -> None:
        self.channel: BlockingChannel = connection.channel()
        self.xa = XaResource(self.channel)
        self.held: list[tuple[int, str, Entry]] = []
        self.working: Branch | None = None
        self.worked: list[Branch] = []


class Walk:
    """The broker, the model, and the steps that both take."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.random = random.Random(seed)
        self.broker = broker
        self.ready: dict[str, list[Entry]] = {queue: [] for queue in QUEUES}
        self.ended: list[Branch] = []
        self.prepared: list[Branch] = []
        self.position = 0
        with connect(broker.url) as connection:
            channel = connection.channel()
            channel.queue_declare(PLAIN, durable=True)
            channel.queue_declare(DEAD, durable=True)
            arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
            channel.queue_declare(REJECTING, durable=True, arguments=arguments)
        self.connect()

    def connect(self) -> None:
        self.connection = connect(self.broker.url)
        self.seeder = self.connection.channel()
        self.seeder.confirm_delivery()
        self.sessions = [Session(self.connection) for _ in range(SESSIONS)]
        in_doubt = self.sessions[0].xa.recover()
        assert sorted(in_doubt) == sorted(branch.xid for branch in self.prepared)

    def step(self) -> None:
        session = self.random.choice(self.sessions)
        steps = [self.seed, self.get, self.get, self.work, self.work, self.work, self.work]
        steps += [self.start_or_end, self.prepare, self.decide, self.decide, self.one_phase]
        if self.random.random() < 0.02:
            steps = [self.close, self.kill]
        self.random.choice(steps)(session)

    def seed(self, _session: Session) -> None:
        queue = self.random.choice(QUEUES)
        body = self.body()
        self.seeder.basic_publish("", queue, body, PERSISTENT)
        self.append(queue, body)

    def get(self, session: Session) -> None:
        queue = self.random.choice(QUEUES)
        received = get(session.channel, queue)
        if received is None:
            assert self.ready[queue] == []
            return
        bodies = [entry.body for entry in self.ready[queue]]
        assert received.body in bodies, f"{queue}: this message should not be ready"
        assert bodies.index(received.body) == 0, f"{queue}: out of order"
        entry = self.ready[queue].pop(0)
        session.held.append((received.delivery_tag, queue, entry))

    def work(self, session: Session) -> None:
        branch = session.working
        if branch is None:
            return
        if not session.held or self.random.random() < 0.5:
            queue, body = self.random.choice(QUEUES), self.body()
            session.channel.basic_publish("", queue, body, PERSISTENT)
            branch.publishes.append((queue, body))
            return
        tag, queue, entry = session.held.pop(self.random.randrange(len(session.held)))
        how = self.random.choice(["ack", "ack", "requeue", "reject"])
        if how == "ack":
            session.channel.basic_ack(tag)
        else:
            session.channel.basic_nack(tag, requeue=how == "requeue")
        branch.settled.append((queue, entry, how))

    def start_or_end(self, session: Session) -> None:
        if session.working is None:
            session.working = Branch(Xid.new(self.random.getrandbits(32)))
            session.worked.append(session.working)
            session.xa.start(session.working.xid)
            return
        branch, session.working = session.working, None
        if self.random.random() < 0.1:
            assert session.xa.end(branch.xid, fail=True) is XaStatus.RBROLLBACK
            with pytest.raises(XaRolledBackError):
                session.xa.prepare(branch.xid)
            self.undo(branch)
        else:
            session.xa.end(branch.xid)
            self.ended.append(branch)

    def prepare(self, session: Session) -> None:
        branch = self.any_of(self.ended)
        if branch is None:
            return
        vote = session.xa.prepare(branch.xid)
        # Given back it is ready however the branch is decided, so it is ready now.
        for queue, entry in branch.given_back():
            self.put_back(queue, entry)
        assert vote is (XaStatus.OK if branch.has_work else XaStatus.RDONLY)
        if branch.has_work:
            self.prepared.append(branch)

    def decide(self, session: Session) -> None:
        branch = self.any_of(self.prepared)
        if branch is None:
            return
        if self.random.random() < 0.5:
            session.xa.commit(branch.xid)
            self.do(branch)
        else:
            session.xa.rollback(branch.xid)
            self.undo(branch)

    def one_phase(self, session: Session) -> None:
        branch = self.any_of(self.ended)
        if branch is None:
            return
        if self.random.random() < 0.5:
            session.xa.commit(branch.xid, one_phase=True)
            self.do(branch)
        else:
            session.xa.rollback(branch.xid)
            self.undo(branch)

    def close(self, session: Session) -> None:
        session.channel.close()
        self.lose(session)
        self.sessions[self.sessions.index(session)] = Session(self.connection)

    def kill(self, _session: Session) -> None:
        self.broker.kill()
        with pytest.raises(Exception, match=r"EOF|reset|lost"):
            self.connection.close()
        for session in self.sessions:
            self.lose(session)
        self.broker.start()
        self.connect()

    def lose(self, session: Session) -> None:
        """The channel is gone, and with it the branches it worked in that are not prepared."""
        for branch in session.worked:
            if branch is session.working:
                self.undo(branch)
            elif branch in self.ended:
                self.ended.remove(branch)
                self.undo(branch)
        for _, queue, entry in session.held:
            self.put_back(queue, entry)

    def finish(self) -> None:
        """Close all, restart, decide what is in doubt, and hold the queues against the model."""
        self.kill(self.sessions[0])
        while self.prepared:
            self.decide(self.sessions[0])
        assert self.sessions[0].xa.recover() == []
        for queue in QUEUES:
            bodies = [message.body for message in drain(self.seeder, queue)]
            assert bodies == [entry.body for entry in self.ready[queue]], queue
        self.connection.close()

    def do(self, branch: Branch) -> None:
        for queue, body in branch.publishes:
            self.append(queue, body)
        for queue, entry in branch.given_back():
            self.put_back(queue, entry)
        for queue, entry, how in branch.settled:
            if how == "reject" and queue == REJECTING:
                self.append(DEAD, entry.body)

    def undo(self, branch: Branch) -> None:
        for queue, entry, _ in branch.settled:
            self.put_back(queue, entry)

    def append(self, queue: str, body: bytes) -> None:
        self.position += 1
        self.ready[queue].append(Entry(self.position, body))

    def put_back(self, queue: str, entry: Entry) -> None:
        self.ready[queue].append(entry)
        self.ready[queue].sort()

    def any_of(self, branches: list[Branch]) -> Branch | None:
        if not branches:
            return None
        return branches.pop(self.random.randrange(len(branches)))

    def body(self) -> bytes:
        size = self.random.choice([8, 100, LARGEST_BODY])
        return self.random.randbytes(size)


@pytest.mark.long
@pytest.mark.rounds(8)
def test_a_random_walk(broker: BrokerProcess, seed: int) -> None:
    walk = Walk(broker, seed)
    for _ in range(STEPS):
        walk.step()
    walk.finish()
