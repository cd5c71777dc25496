"""Names of exchanges and queues: which are reserved, and which are names at all."""

from __future__ import annotations

import re

from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError

RESERVED_PREFIX = "amq."

NAME_RULES = {
    "lenient": re.compile(r"[^\r\n]*"),
    "strict": re.compile(r"[a-zA-Z0-9\-_.:]{0,127}"),
    "0-10": re.compile(r"([a-zA-Z0-9_][^\r\n]*)?"),
}
"""What a name may be: as in RabbitMQ, as AMQP 0-9-1 says, or as AMQP 0-10 does. All of them have
at most 255 bytes, since the wire has no more."""


def without_line_ends(name: str) -> str:
    """A name as RabbitMQ takes it."""
    return name.replace("\r", "").replace("\n", "")


def check_name(kind: str, name: str, vhost: str, rule: str) -> None:
    """Make sure that something new can have this name.

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
