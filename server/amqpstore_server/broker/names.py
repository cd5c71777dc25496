"""Names of exchanges and queues: which are reserved, and which are valid."""

from __future__ import annotations

import re

from amqpstore_server.broker.errors import AccessRefusedError, PreconditionFailedError

RESERVED_PREFIX = "amq."

NAME_RULES = {
    "lenient": re.compile(r"[^\r\n]*"),
    "strict": re.compile(r"[a-zA-Z0-9\-_.:]{0,127}"),
    "0-10": re.compile(r"([a-zA-Z0-9_][^\r\n]*)?"),
}
"""The rules for names: as in RabbitMQ, in AMQP 0-9-1, or in AMQP 0-10. Names have at most 255 bytes
in all of them, since a short string holds no more.
"""


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
