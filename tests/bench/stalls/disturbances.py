"""Work that may hold up all other clients, each in the size that the field complains about."""

import socket
import struct
import time

from amqpstore_tools.client import wire
from amqpstore_tools.client.connection import CHANNEL
from amqpstore_tools.client.errors import BenchError, PeerError
from tests.bench.interference.dialogue import Dialogue
from tests.bench.stalls.disturbance import Disturbance

_FANOUT_PUBLISHES = 100
_SMALL_QUEUES = 100
_POLL_S = 0.02
_LIMIT_MESSAGES = 1000


class Declares(Disturbance):
    """Queues are declared."""

    about = "durable queues declared in one write"
    count = 5000

    def prepare(self) -> None:
        """Do nothing."""

    def disturb(self) -> None:
        """Declare them."""
        self.declare_all(self.names())

    def clean(self) -> None:
        """Delete them."""
        self.delete_all(self.names())


class Deletes(Declares):
    """Queues are deleted."""

    about = "durable queues deleted in one write"

    def prepare(self) -> None:
        """Declare them."""
        self.declare_all(self.names())

    def disturb(self) -> None:
        """Delete them."""
        self.delete_all(self.names())


class TransientFanout(Disturbance):
    """One read has publishes for many queues."""

    about = f"queues that each of {_FANOUT_PUBLISHES} transient publishes in one write goes to"
    count = 1000
    persistent = False

    def prepare(self) -> None:
        """Declare and bind the queues."""
        self.client.connection.declare_exchange(self.name, "fanout")
        self.declare_all(self.names())
        self.bind_all((name, "") for name in self.names())

    def disturb(self) -> None:
        """Publish."""
        self.client.publish(_FANOUT_PUBLISHES, (self.name, ""), persistent=self.persistent)

    def clean(self) -> None:
        """Delete the queues and the exchange."""
        self.delete_all(self.names())
        self.client.connection.delete_exchange(self.name)


class DurableFanout(TransientFanout):
    """A fan-out whose messages all go to disk."""

    about = f"queues that each of {_FANOUT_PUBLISHES} persistent publishes in one write goes to"
    persistent = True


class LimitedFanout(DurableFanout):
    """A fan-out to full queues, of which each drops a message for each that comes, and no two
    messages have the same routing key.
    """

    about = f"full queues that each of {_FANOUT_PUBLISHES} publishes with keys of their own goes to"

    def prepare(self) -> None:
        """Declare, bind and fill the queues."""
        self.client.connection.declare_exchange(self.name, "fanout")
        self.declare_all(self.names(), max_length=1)
        self.bind_all((name, "") for name in self.names())
        self.client.publish(1, (self.name, ""), confirm=False)

    def disturb(self) -> None:
        """Publish."""
        keys = [(self.name, f"key {number:03}") for number in range(_FANOUT_PUBLISHES)]
        self.client.publish(_FANOUT_PUBLISHES, *keys)


class Purge(Disturbance):
    """A long queue is purged."""

    about = "messages purged"
    count = 1_000_000

    def prepare(self) -> None:
        """Fill the queue."""
        self.client.connection.declare_queue(self.name, {})
        self.client.publish(self.times, ("", self.name))

    def disturb(self) -> None:
        """Purge it."""
        self.client.connection.purge_queue(self.name)


class DeleteFull(Purge):
    """A long queue is deleted."""

    about = "messages of a queue that is deleted"

    def disturb(self) -> None:
        """Delete it."""
        self.client.connection.delete_queue(self.name)


class Requeue(Purge):
    """A consumer requeues everything it has."""

    about = "messages requeued by basic.recover"

    def prepare(self) -> None:
        """Fill the queue, and take everything."""
        super().prepare()
        self.take_all()

    def take_all(self, *, transacted: bool = False) -> None:
        """Have a new client take everything, whose consumer then ends."""
        self.client.close()
        self.client = Dialogue(self._address, self._timeout_s)
        connection = self.client.connection
        if transacted:
            connection.call(wire.TX_SELECT, b"", wire.TX_SELECT_OK)
        self.client.take(self.name, self.times)
        cancel = wire.short_string("bench") + b"\0"
        connection.call(wire.BASIC_CANCEL, cancel, wire.BASIC_CANCEL_OK)

    def disturb(self) -> None:
        """Requeue, and wait until all messages are ready."""
        self.client.connection.call(wire.BASIC_RECOVER, b"\1", wire.BASIC_RECOVER_OK)
        self.wait_until_ready()

    def wait_until_ready(self, queue: str = "") -> None:
        """Return when all messages are in their queue again, or in another. Raises: BenchError."""
        queue = queue or self.name
        deadline_s = time.monotonic() + self._timeout_s
        while self.client.connection.count_ready(queue) < self.times:
            if time.monotonic() > deadline_s:
                raise BenchError(f"{self.times} messages were not in {queue} in time")
            time.sleep(_POLL_S)


class NackAll(Requeue):
    """A consumer gives everything back with one nack."""

    about = "messages requeued by one basic.nack"

    def disturb(self) -> None:
        """Requeue, and wait until all messages are ready."""
        nack = wire.method(CHANNEL, wire.BASIC_NACK, bytes(8) + b"\3")  # multiple, requeue
        self.client.connection.socket.sendall(nack)
        self.wait_until_ready()


class RejectAll(Requeue):
    """A consumer rejects everything it has, and the queue has dead letters."""

    about = "messages that become dead letters by one basic.nack"
    count = 100_000

    @property
    def arguments(self) -> dict[str, wire.TableItem]:
        """The arguments of the queue."""
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{self.name}-dead"}

    def prepare(self) -> None:
        """Declare the queue with its arguments, fill it, and take everything."""
        self.client.connection.declare_queue(f"{self.name}-dead", {})
        self.client.connection.declare_queue(self.name, self.arguments)
        self.client.publish(self.times, ("", self.name))
        self.take_all()

    def disturb(self) -> None:
        """Reject, and wait until all messages are dead letters."""
        nack = wire.method(CHANNEL, wire.BASIC_NACK, bytes(8) + b"\1")  # multiple, no requeue
        self.client.connection.socket.sendall(nack)
        self.wait_until_ready(f"{self.name}-dead")

    def clean(self) -> None:
        """Delete the queues."""
        super().clean()
        self.client.connection.delete_queue(f"{self.name}-dead")


class HistoryAcks(RejectAll):
    """A consumer acks everything it has, and the queue keeps a history: an extension of
    amqpstore.
    """

    about = "messages that enter a history by one basic.ack"

    @property
    def arguments(self) -> dict[str, wire.TableItem]:
        """The arguments of the queue."""
        return {"x-history-length": self.times}

    def disturb(self) -> None:
        """Ack, and wait until the history has all messages."""
        self.client.ack_all()
        self.wait_until_ready(f"amq.consumed.{self.name}")


class CloseChannel(Requeue):
    """A channel with many unacked messages is closed."""

    about = "messages requeued, as their consumer's channel is closed"

    def disturb(self) -> None:
        """Close the channel, and wait until all messages are ready."""
        reason = struct.pack(">H", 200) + wire.short_string("") + bytes(4)
        self.client.connection.call(wire.CHANNEL_CLOSE, reason, wire.CHANNEL_CLOSE_OK)
        self.client.connection.abandon()
        self.client = Dialogue(self._address, self._timeout_s)
        self.wait_until_ready()


class Disconnect(Requeue):
    """A consumer with many unacked messages disconnects."""

    about = "messages requeued, as their consumer's socket is closed"

    def disturb(self) -> None:
        """Close the socket without a close method, and wait until all messages are ready."""
        # Not `close`, which does nothing while the quiet client's process has the socket as well.
        self.client.connection.socket.shutdown(socket.SHUT_RDWR)
        self.client.connection.abandon()
        self.client = Dialogue(self._address, self._timeout_s)
        self.wait_until_ready()


class ExpireAll(Purge):
    """All messages of a long queue expire at once."""

    about = "messages that expire by the TTL of their queue"

    @property
    def _ttl_ms(self) -> int:
        """The time that it may take to publish them."""
        return max(2_000, self.times * 120 // 1_000)

    def prepare(self) -> None:
        """Fill the queue, and wait until its messages are about to expire."""
        due_s = time.monotonic() + self._ttl_ms / 1000
        self.client.connection.declare_queue(self.name, {"x-message-ttl": self._ttl_ms})
        self.client.publish(self.times, ("", self.name))
        # All but the first of them expire while the quiet client is there.
        time.sleep(max(0.0, due_s - 1.5 - time.monotonic()))

    def disturb(self) -> None:
        """Wait until they have expired. Raises: BenchError."""
        deadline_s = time.monotonic() + self._timeout_s
        while self.client.connection.count_ready(self.name):
            if time.monotonic() > deadline_s:
                raise BenchError(f"{self.times} messages did not expire in time")
            time.sleep(_POLL_S)


class Replay(Disturbance):
    """The history of a queue is replayed into it: an extension of amqpstore."""

    about = "messages of a history replayed"
    count = 200_000

    def prepare(self) -> None:
        """Consume messages from a queue that keeps its history."""
        self.client.connection.declare_queue(self.name, {"x-history-length": self.times})
        # Small and alike: more than 64 MiB are not replayed at once.
        self.client.publish(self.times, ("", self.name), size=8, vary=False)
        self.client.take(self.name, self.times)
        self.client.ack_all()
        self.client.close()
        self.client = Dialogue(self._address, self._timeout_s)

    def disturb(self) -> None:
        """Request all of it."""
        self.client.publish(1, ("amq.replay", self.name), size=0, vary=False)
        ready = self.client.connection.count_ready(self.name)
        if ready != self.times:
            raise PeerError(f"{ready} of {self.times} messages were replayed")


class Tx(Disturbance):
    """A large transaction is committed."""

    about = "persistent publishes of one tx, and its commit"
    count = 100_000

    def prepare(self) -> None:
        """Select tx."""
        self.client.connection.declare_queue(self.name, {})
        self.client.connection.call(wire.TX_SELECT, b"", wire.TX_SELECT_OK)

    def disturb(self) -> None:
        """Publish and commit."""
        self.client.publish(self.times, ("", self.name), confirm=False)
        self.client.connection.call(wire.TX_COMMIT, b"", wire.TX_COMMIT_OK)


class RolledBackTx(Tx):
    """A large transaction is rolled back."""

    about = "persistent publishes of one tx, and its rollback"

    def disturb(self) -> None:
        """Publish and roll back."""
        self.client.publish(self.times, ("", self.name), confirm=False)
        self.client.connection.call(wire.TX_ROLLBACK, b"", wire.TX_ROLLBACK_OK)


class AckingTx(Requeue):
    """A large transaction acks."""

    about = "messages acked in one tx, and its commit"
    count = 100_000

    def prepare(self) -> None:
        """Select tx, and take the messages."""
        Purge.prepare(self)
        self.take_all(transacted=True)

    def disturb(self) -> None:
        """Ack and commit."""
        self.client.ack_all()
        self.client.connection.call(wire.TX_COMMIT, b"", wire.TX_COMMIT_OK)


class LargeBody(Disturbance):
    """A large message is published, and consumed."""

    about = "MiB of one persistent message, published and consumed"
    count = 64

    def prepare(self) -> None:
        """Declare the queue."""
        self.client.connection.declare_queue(self.name, {})

    def disturb(self) -> None:
        """Publish it, wait for its confirm, and take it."""
        self.client.publish(1, ("", self.name), size=self.times << 20)
        self.client.take(self.name, 1)


class LengthLimits(Disturbance):
    """Full queues accept messages, and drop one for each."""

    about = f"messages into two full queues, one of {_LIMIT_MESSAGES}, one limited in bytes"
    count = 100_000

    def prepare(self) -> None:
        """Declare and bind the queues."""
        connection = self.client.connection
        connection.declare_exchange(self.name, "fanout")
        connection.declare_queue(f"{self.name}-n", {"x-max-length": _LIMIT_MESSAGES})
        connection.declare_queue(f"{self.name}-b", {"x-max-length-bytes": _LIMIT_MESSAGES * 100})
        self.bind_all([(f"{self.name}-n", ""), (f"{self.name}-b", "")])
        self.client.publish(_LIMIT_MESSAGES, (self.name, ""))
        self.client.close()
        self.client = Dialogue(self._address, self._timeout_s)

    def disturb(self) -> None:
        """Publish."""
        self.client.publish(self.times, (self.name, ""))

    def clean(self) -> None:
        """Delete the queues and the exchange."""
        for queue in (f"{self.name}-n", f"{self.name}-b"):
            self.client.connection.delete_queue(queue)
        self.client.connection.delete_exchange(self.name)


class Binds(Disturbance):
    """A queue gets many bindings."""

    about = "durable bindings made in one write"
    count = 20_000

    def prepare(self) -> None:
        """Declare the queue and its exchange."""
        self.client.connection.declare_exchange(self.name, "topic")
        self.client.connection.declare_queue(self.name, {})

    def disturb(self) -> None:
        """Bind."""
        self.bind_all((self.name, f"a.{number:06}.*") for number in range(self.times))

    def clean(self) -> None:
        """Delete queue and exchange."""
        self.client.connection.delete_queue(self.name)
        self.client.connection.delete_exchange(self.name)


class DeleteBound(Binds):
    """A queue with many bindings is deleted."""

    about = "bindings of a queue that is deleted"

    def prepare(self) -> None:
        """Bind it."""
        super().prepare()
        super().disturb()

    def disturb(self) -> None:
        """Delete it."""
        self.client.connection.delete_queue(self.name)


class DeleteExchange(DeleteBound):
    """An exchange with many bindings is deleted."""

    about = "bindings of an exchange that is deleted"

    def disturb(self) -> None:
        """Delete it."""
        self.client.connection.delete_exchange(self.name)


class DeleteDeclare(DeleteBound):
    """A queue with many bindings is deleted, and declared again at once."""

    about = "bindings of a queue that is deleted and declared again"

    def disturb(self) -> None:
        """Delete it, and declare it."""
        super().disturb()
        self.client.connection.declare_queue(self.name, {})


class DeleteBeside(DeleteBound):
    """Queues with one binding each are deleted, while another queue has many."""

    about = f"bindings of another queue, while {_SMALL_QUEUES} with one each are deleted"

    def small(self) -> list[str]:
        """Return the queues to delete."""
        return [f"{self.name}-{number:03}" for number in range(_SMALL_QUEUES)]

    def prepare(self) -> None:
        """Declare and bind everything."""
        super().prepare()
        self.declare_all(self.small())
        self.bind_all((name, "b.#") for name in self.small())

    def disturb(self) -> None:
        """Delete the small ones."""
        self.delete_all(self.small())

    def clean(self) -> None:
        """Delete everything."""
        self.delete_all(self.small())
        super().clean()
