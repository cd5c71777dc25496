"""A client that works in branches of distributed transactions, for the tests of these."""

from amqpstore_server.broker.channels.branches import Steps, XaStatus, Xid
from amqpstore_server.broker.rights.permissions import ALL, Access
from tests.simulated_broker import SimulatedBroker
from tests.unit.broker.simulated import Client

XID = Xid(1, b"global", b"\xff\x00")
OTHER = Xid(1, b"global", b"other")
GUEST = Access("guest", "/", ALL)
STRANGER = Access("stranger", "/", {**ALL, "configure": "^mine"})
OPERATOR = Access("operator", "/", {"configure": r"^amq\.dtx$", "write": "", "read": ""})


class BranchClient(Client):
    """A channel in dtx mode, and what it was told of branches."""

    def __init__(self, simulated: SimulatedBroker, access: Access = GUEST) -> None:
        super().__init__(simulated)
        self.channel.select_branches()
        self.access = access
        self.statuses: list[XaStatus] = []
        self._branches = simulated.vhost.branches

    def start(self, xid: Xid = XID, *, join: bool = False, resume: bool = False) -> XaStatus:
        return self._branches.start(self.channel, self.access, xid, join=join, resume=resume)

    def end(self, xid: Xid = XID, *, fail: bool = False, suspend: bool = False) -> XaStatus:
        return self._branches.end(self.channel, self.access, xid, fail=fail, suspend=suspend)

    def prepare(self, xid: Xid = XID) -> None:
        for _ in self.preparing(xid):
            pass

    def preparing(self, xid: Xid = XID) -> Steps:
        return self._branches.preparing(self.access, xid, self.statuses.append)

    def commit(self, xid: Xid = XID, *, one_phase: bool = False) -> None:
        for _ in self.committing(xid, one_phase=one_phase):
            pass

    def committing(self, xid: Xid = XID, *, one_phase: bool = False) -> Steps:
        return self._branches.committing(
            self.access, xid, self.statuses.append, one_phase=one_phase
        )

    def rollback(self, xid: Xid = XID) -> XaStatus:
        told: list[XaStatus] = []
        for _ in self._branches.rolling_back(self.access, xid, told.append):
            pass
        return told[0]

    def rolling_back(self, xid: Xid = XID) -> Steps:
        return self._branches.rolling_back(self.access, xid, self.statuses.append)

    def forget(self, xid: Xid = XID) -> None:
        self._branches.forget(self.access, xid)

    def recover(self) -> list[Xid]:
        return self._branches.recover(self.access)

    def set_timeout(self, seconds: int, xid: Xid = XID) -> None:
        self._branches.set_timeout(self.access, xid, seconds)

    def timeout(self, xid: Xid = XID) -> int:
        return self._branches.timeout_s(self.access, xid)


def with_source() -> SimulatedBroker:
    """A broker with messages to be acked, a queue to publish to, and one for dead letters."""
    simulated = SimulatedBroker()
    simulated.queue("source", dead_letter_exchange="", dead_letter_routing_key="dead")
    for name in ("target", "dead"):
        simulated.queue(name)
    Client(simulated).publish("", "source", "1", "2", "3", "4")
    simulated.settle()
    return simulated


def work(client: BranchClient, xid: Xid = XID) -> None:
    """An ack, a rejection, a nack and two publishes."""
    client.start(xid)
    for _ in range(3):
        client.get("source")
    client.ack("1")
    client.reject("2")
    client.requeue("3")
    client.publish("", "target", "a", "b")
    client.end(xid)
