"""Names of exchanges and queues: which are reserved, and which are valid."""

from __future__ import annotations

import hashlib
import re

from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError

RESERVED_PREFIX = "amq."
MAX_NAME_BYTES = 255
"""The most bytes of a name: a short string holds no more."""

NAME_RULES = {
    "lenient": re.compile(r"[^\r\n]*"),
    "strict": re.compile(r"[a-zA-Z0-9\-_.:]{0,127}"),
    "0-10": re.compile(r"([a-zA-Z0-9_][^\r\n]*)?"),
}
"""The rules for names: as in RabbitMQ, in AMQP 0-9-1, or in AMQP 0-10. Names have at most
`MAX_NAME_BYTES` in all of them.
"""


def own_name(kind: str, name: str) -> str:
    """Return the name of the queue of the broker's own, of some kind, that belongs to what has this
    name. It has a hash instead of the name if it would be too long.
    """
    own = f"{RESERVED_PREFIX}{kind}.{name}"
    if len(own.encode()) <= MAX_NAME_BYTES:
        return own
    # No dot: the hash can be the name of something too.
    return f"{RESERVED_PREFIX}{kind}:{hashlib.blake2b(name.encode(), digest_size=32).hexdigest()}"


def without_line_ends(name: str) -> str:
    """Strip line ends from a name, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")


def check_name(kind: str, name: str, vhost: str, rule: str) -> None:
    """Make sure that a new exchange or queue may have this name.

    Args: kind, "queue" or "exchange"; rule, a key of NAME_RULES.
    Raises: AccessRefusedError, PreconditionFailedError.
    """
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefusedError(
            f"{kind} name '{name}' in vhost '{vhost}' contains reserved prefix 'amq.*'"
        )
    if not NAME_RULES[rule].fullmatch(name):
        raise PreconditionFailedError(
            f"{kind} name '{name}' in vhost '{vhost}' is invalid under the rule '{rule}', which is "
            f"{NAME_RULES[rule].pattern}"
        )
