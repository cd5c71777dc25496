"""amqpstore's extensions of AMQP 0-9-1, for pika's BlockingConnection.

`XaResource` is the resource manager's side of two-phase commit (class dtx, X/Open XA), for a
transaction manager to drive; `get()` is a basic.get that waits; `publish()` is for many messages of
a transaction, which it publishes in half the time; `KeptProperties` and `RawProperties` are
properties byte for byte. The package needs pika (`pip install amqpstore[pika]`) and imports nothing
else of amqpstore.

- `xa`, `xid`, `status`: the resource manager, the name of a branch, and its outcome.
- `get`: a basic.get that waits.
- `methods`, `inside`: the methods of class dtx, and the only use of pika's private interface.
- `errors`: the exceptions, each also an AMQPError.
"""

from amqpstore_tools.pika.errors import (
    ExtensionMissingError,
    PikaChangedError,
    XaAccessRefusedError,
    XaError,
    XaHeuristicError,
    XaNotFoundError,
    XaProtocolError,
    XaRefusedError,
    XaRolledBackError,
)
from amqpstore_tools.pika.get import get
from amqpstore_tools.pika.inside import (
    KeptProperties,
    Outgoing,
    RawProperties,
    keep_properties,
    publish,
)
from amqpstore_tools.pika.status import XaStatus
from amqpstore_tools.pika.xa import XaResource
from amqpstore_tools.pika.xid import Xid

__all__ = [
    "ExtensionMissingError",
    "KeptProperties",
    "Outgoing",
    "PikaChangedError",
    "RawProperties",
    "XaAccessRefusedError",
    "XaError",
    "XaHeuristicError",
    "XaNotFoundError",
    "XaProtocolError",
    "XaRefusedError",
    "XaResource",
    "XaRolledBackError",
    "XaStatus",
    "Xid",
    "get",
    "keep_properties",
    "publish",
]
