"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, with its encoding.

A class's annotations, in their order, are the method's arguments on the wire (see `layout`); its
name is the method's name. Flags and tables may be left out of a call, and are then false and empty;
a bit that is essential to its method, such as `requeue`, may not.

Past 600 lines because it is a list, one entry per method, and nothing else.
"""

import inspect
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Self, TypeVar, dataclass_transform

from amqpstore_server.protocol.errors import (
    MalformedError,
    NotImplementedByServer,
    PreconditionFailed,
)
from amqpstore_server.protocol.layout import (
    Bit,
    Long,
    LongLong,
    LongStr,
    MethodLayout,
    Octet,
    Octets,
    Short,
    ShortStr,
    Table,
    TrailingTable,
)

_IDS = struct.Struct(">HH")


class Method:
    """The base class of methods. The payload of a method frame: ids, then arguments."""

    __slots__ = ()

    class_id: ClassVar[int]
    method_id: ClassVar[int]
    name: ClassVar[str]
    """The name as in the specification: `queue.declare-ok`."""
    layout: ClassVar[MethodLayout]

    def encode(self) -> bytes:
        """Encode the payload. Raises: ValueError for a value that its argument cannot hold."""
        return _IDS.pack(self.class_id, self.method_id) + self.layout.encode(self.__getattribute__)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Decode the payload of a method with this class's ids. Raises: MalformedError."""
        return cls(**cls.layout.decode(payload, _IDS.size))


METHODS: dict[tuple[int, int], type[Method]] = {}
"""By class id and method id."""


def decode_method(payload: bytes) -> Method:
    """Decode the payload of a method frame.

    Raises: NotImplementedByServer for ids that are not in METHODS, MalformedError for arguments
    that are not the method's, PreconditionFailed for a table that is too large. The error
    has the class and method id.
    """
    if len(payload) < _IDS.size:
        raise MalformedError(f"a method frame of {len(payload)} bytes has no class and method id")
    class_id, method_id = _IDS.unpack_from(payload)
    method = METHODS.get((class_id, method_id))
    if method is None:
        unknown = NotImplementedByServer(f"class {class_id} method {method_id} is not known")
        raise unknown.at(class_id, method_id)
    try:
        return method.decode(payload)
    except (MalformedError, PreconditionFailed) as error:
        error.at(class_id, method_id)
        raise


_M = TypeVar("_M", bound=Method)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def _method(class_id: int, method_id: int) -> Callable[[type[_M]], type[_M]]:
    """Make a class a frozen, slotted dataclass, compile its layout and enter it into METHODS."""

    def define(declared: type[_M]) -> type[_M]:
        cls = dataclass(frozen=True, slots=True, kw_only=True)(declared)
        cls.class_id = class_id
        cls.method_id = method_id
        first, *words = re.findall("[A-Z][a-z]+", cls.__name__)
        cls.name = f"{first}.{'-'.join(words)}".lower()
        cls.layout = MethodLayout(inspect.get_annotations(declared))
        METHODS[class_id, method_id] = cls
        return cls

    return define


@_method(10, 10)
class ConnectionStart(Method):
    """The server's first method: what it is and how a client may log in."""

    version_major: Octet
    version_minor: Octet
    server_properties: Table = field(default_factory=dict)
    mechanisms: LongStr
    locales: LongStr


@_method(10, 11)
class ConnectionStartOk(Method):
    """The client's choice of mechanism and locale, and its first response."""

    client_properties: Table = field(default_factory=dict)
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@_method(10, 20)
class ConnectionSecure(Method):
    """A further challenge of a mechanism that needs more than one step."""

    challenge: LongStr


@_method(10, 21)
class ConnectionSecureOk(Method):
    """The response to a challenge."""

    response: LongStr


@_method(10, 30)
class ConnectionTune(Method):
    """The server's limits; 0 is none. `heartbeat` in seconds, `frame_max` in bytes."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 31)
class ConnectionTuneOk(Method):
    """The limits that hold, as the client chose them within the server's."""

    channel_max: Short
    frame_max: Long
    heartbeat: Short


@_method(10, 40)
class ConnectionOpen(Method):
    """The client's choice of virtual host."""

    virtual_host: ShortStr
    reserved_1: ClassVar[ShortStr]
    reserved_2: ClassVar[Bit]


@_method(10, 41)
class ConnectionOpenOk(Method):
    """The connection is open."""

    reserved_1: ClassVar[ShortStr]


@_method(10, 50)
class ConnectionClose(Method):
    """The last method but one; the ids name the method at fault, or are 0."""

    reply_code: Short
    reply_text: ShortStr
    failing_class_id: Short
    failing_method_id: Short


@_method(10, 51)
class ConnectionCloseOk(Method):
    """The last method."""


@_method(10, 60)
class ConnectionBlocked(Method):
    """RabbitMQ's: the server reads no more publishes, and why."""

    reason: ShortStr


@_method(10, 61)
class ConnectionUnblocked(Method):
    """RabbitMQ's: the server reads publishes again."""


@_method(10, 70)
class ConnectionUpdateSecret(Method):
    """RabbitMQ's: a new password or token before the old one expires."""

    new_secret: LongStr
    reason: ShortStr


@_method(10, 71)
class ConnectionUpdateSecretOk(Method):
    """RabbitMQ's: the new secret is in use."""


@_method(20, 10)
class ChannelOpen(Method):
    """Open the channel whose number the frame has."""

    reserved_1: ClassVar[ShortStr]


@_method(20, 11)
class ChannelOpenOk(Method):
    """The channel is open."""

    reserved_1: ClassVar[LongStr]


@_method(20, 20)
class ChannelFlow(Method):
    """Ask the peer to stop sending contents, or to go on."""

    active: Bit


@_method(20, 21)
class ChannelFlowOk(Method):
    """The answer of the asked peer: what it does from now on."""

    active: Bit


@_method(20, 40)
class ChannelClose(Method):
    """The channel's last method but one; the ids name the method at fault, or are 0."""

    reply_code: Short
    reply_text: ShortStr
    failing_class_id: Short
    failing_method_id: Short


@_method(20, 41)
class ChannelCloseOk(Method):
    """The channel's last method."""


@_method(40, 10)
class ExchangeDeclare(Method):
    """Create an exchange or check that it is there. RabbitMQ revived auto-delete and internal."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr
    type: ShortStr
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(40, 11)
class ExchangeDeclareOk(Method):
    """The exchange is there."""


@_method(40, 20)
class ExchangeDelete(Method):
    """Delete an exchange and its bindings."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr
    if_unused: Bit = False
    no_wait: Bit = False


@_method(40, 21)
class ExchangeDeleteOk(Method):
    """The exchange is gone."""


@_method(40, 30)
class ExchangeBind(Method):
    """RabbitMQ's: route what `source` gets on to the exchange `destination`."""

    reserved_1: ClassVar[Short]
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(40, 31)
class ExchangeBindOk(Method):
    """The exchanges are bound."""


@_method(40, 40)
class ExchangeUnbind(Method):
    """RabbitMQ's: undo an exchange.bind of the same arguments."""

    reserved_1: ClassVar[Short]
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(40, 51)
class ExchangeUnbindOk(Method):
    """The exchanges are not bound. (51 is what RabbitMQ chose; 41 is not used.)"""


@_method(50, 10)
class QueueDeclare(Method):
    """Create a queue or check that it is there; the server names one without a name."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(50, 11)
class QueueDeclareOk(Method):
    """The queue exists; `message_count` messages are ready."""

    queue: ShortStr
    message_count: Long
    consumer_count: Long


@_method(50, 20)
class QueueBind(Method):
    """Route what an exchange gets for a routing key or for arguments to a queue."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(50, 21)
class QueueBindOk(Method):
    """The queue is bound."""


@_method(50, 30)
class QueuePurge(Method):
    """Delete a queue's ready messages."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    no_wait: Bit = False


@_method(50, 31)
class QueuePurgeOk(Method):
    """`message_count` messages were deleted."""

    message_count: Long


@_method(50, 40)
class QueueDelete(Method):
    """Delete a queue, its bindings and its messages."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_method(50, 41)
class QueueDeleteOk(Method):
    """The queue is deleted, and `message_count` messages with it."""

    message_count: Long


@_method(50, 50)
class QueueUnbind(Method):
    """Undo a queue.bind of the same arguments."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr
    arguments: Table = field(default_factory=dict)


@_method(50, 51)
class QueueUnbindOk(Method):
    """The queue is not bound."""


@_method(60, 10)
class BasicQos(Method):
    """Limits how many messages, or bytes of them, may be unacked; 0 means no limit."""

    prefetch_size: Long
    prefetch_count: Short
    global_: Bit = False


@_method(60, 11)
class BasicQosOk(Method):
    """The limits hold."""


@_method(60, 20)
class BasicConsume(Method):
    """Start a consumer; the server finds a tag for one without."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    consumer_tag: ShortStr
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_method(60, 21)
class BasicConsumeOk(Method):
    """The consumer is there."""

    consumer_tag: ShortStr


@_method(60, 30)
class BasicCancel(Method):
    """End a consumer. From the server, RabbitMQ's: its queue is gone."""

    consumer_tag: ShortStr
    no_wait: Bit = False


@_method(60, 31)
class BasicCancelOk(Method):
    """The consumer is gone."""

    consumer_tag: ShortStr


@_method(60, 40)
class BasicPublish(Method):
    """Send a message; its content follows."""

    reserved_1: ClassVar[Short]
    exchange: ShortStr
    routing_key: ShortStr
    mandatory: Bit = False
    immediate: Bit = False


@_method(60, 50)
class BasicReturn(Method):
    """A mandatory message comes back; its content follows."""

    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 60)
class BasicDeliver(Method):
    """A message for a consumer; its content follows."""

    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit = False
    exchange: ShortStr
    routing_key: ShortStr


@_method(60, 70)
class BasicGet(Method):
    """Ask for one message; `arguments` are an extension, which most clients leave out."""

    reserved_1: ClassVar[Short]
    queue: ShortStr
    no_ack: Bit = False
    arguments: TrailingTable = field(default_factory=dict)


@_method(60, 71)
class BasicGetOk(Method):
    """The message asked for, and how many are ready behind it; its content follows."""

    delivery_tag: LongLong
    redelivered: Bit = False
    exchange: ShortStr
    routing_key: ShortStr
    message_count: Long


@_method(60, 72)
class BasicGetEmpty(Method):
    """No message is ready."""

    reserved_1: ClassVar[ShortStr]


@_method(60, 80)
class BasicAck(Method):
    """A delivery is acknowledged; from the server, RabbitMQ's: a publish is confirmed."""

    delivery_tag: LongLong
    multiple: Bit = False


@_method(60, 90)
class BasicReject(Method):
    """A delivery is rejected: dropped, or requeued."""

    delivery_tag: LongLong
    requeue: Bit


@_method(60, 100)
class BasicRecoverAsync(Method):
    """Do as basic.recover, without an answer."""

    requeue: Bit


@_method(60, 110)
class BasicRecover(Method):
    """Deliver all that is unacked on the channel again."""

    requeue: Bit


@_method(60, 111)
class BasicRecoverOk(Method):
    """The unacked messages will be delivered again."""


@_method(60, 120)
class BasicNack(Method):
    """RabbitMQ's: basic.reject for many; from the server: a publish is not confirmed."""

    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit


@_method(85, 10)
class ConfirmSelect(Method):
    """RabbitMQ's: confirm each publish on this channel from now on."""

    no_wait: Bit = False


@_method(85, 11)
class ConfirmSelectOk(Method):
    """Publishes are confirmed."""


@_method(90, 10)
class TxSelect(Method):
    """Put the channel into transactions from now on."""


@_method(90, 11)
class TxSelectOk(Method):
    """The channel is transactional."""


@_method(90, 20)
class TxCommit(Method):
    """Commit everything published and acked since the last commit or rollback."""


@_method(90, 21)
class TxCommitOk(Method):
    """The commit is done, and durable."""


@_method(90, 30)
class TxRollback(Method):
    """Drop everything published and acked since the last commit or rollback."""


@_method(90, 31)
class TxRollbackOk(Method):
    """Everything published and acked since the last commit is dropped."""


@_method(100, 10)
class DtxSelect(Method):
    """Put the channel into distributed transactions from now on."""


@_method(100, 11)
class DtxSelectOk(Method):
    """The channel can work in branches."""


@_method(100, 20)
class DtxStart(Method):
    """Work in a branch: a new one, one that is there, or one that was suspended."""

    format_id: Long
    global_id: Octets
    branch_id: Octets
    join: Bit = False
    resume: Bit = False


@_method(100, 21)
class DtxStartOk(Method):
    """The channel works in it, unless the status says that it has failed."""

    status: Short


@_method(100, 30)
class DtxEnd(Method):
    """Stop working in a branch."""

    format_id: Long
    global_id: Octets
    branch_id: Octets
    fail: Bit = False
    suspend: Bit = False


@_method(100, 31)
class DtxEndOk(Method):
    """The channel does not work in it any more."""

    status: Short


@_method(100, 40)
class DtxPrepare(Method):
    """Make sure that a branch can be committed."""

    format_id: Long
    global_id: Octets
    branch_id: Octets


@_method(100, 41)
class DtxPrepareOk(Method):
    """The branch can be prepared, or it is over, as the status says."""

    status: Short


@_method(100, 50)
class DtxCommit(Method):
    """Commit a prepared branch, or with `one_phase` an unprepared one."""

    format_id: Long
    global_id: Octets
    branch_id: Octets
    one_phase: Bit = False


@_method(100, 51)
class DtxCommitOk(Method):
    """The branch was ended; the status says how."""

    status: Short


@_method(100, 60)
class DtxRollback(Method):
    """Drop all work of a branch."""

    format_id: Long
    global_id: Octets
    branch_id: Octets


@_method(100, 61)
class DtxRollbackOk(Method):
    """The branch is rolled back, or was ended otherwise, as the status says."""

    status: Short


@_method(100, 70)
class DtxForget(Method):
    """Forget a branch that was decided heuristically."""

    format_id: Long
    global_id: Octets
    branch_id: Octets


@_method(100, 71)
class DtxForgetOk(Method):
    """The branch is forgotten."""

    status: Short


@_method(100, 80)
class DtxRecover(Method):
    """List the branches that are prepared and not decided."""


@_method(100, 81)
class DtxRecoverOk(Method):
    """The names of prepared branches, one behind another: each as the arguments of `Prepare`."""

    in_doubt: LongStr


@_method(100, 90)
class DtxGetTimeout(Method):
    """Ask how long a branch may take until it is prepared."""

    format_id: Long
    global_id: Octets
    branch_id: Octets


@_method(100, 91)
class DtxGetTimeoutOk(Method):
    """The timeout in seconds; 0 means no limit."""

    timeout: Long


@_method(100, 100)
class DtxSetTimeout(Method):
    """Limit the seconds from the start of a branch until it is prepared."""

    format_id: Long
    global_id: Octets
    branch_id: Octets
    timeout: Long


@_method(100, 101)
class DtxSetTimeoutOk(Method):
    """The new timeout applies."""
