"""What the two ends of a connection say of themselves, and what a client makes of it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

from amqpstore_server.protocol import methods

_CAPABILITIES = (
    "publisher_confirms",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "exchange_exchange_bindings",
    "consumer_priorities",
    "per_consumer_qos",
    "direct_reply_to",
    "authentication_failure_close",
    "dtx",
    "basic.get.wait",
)


class Product(NamedTuple):
    """What the server calls itself; some clients turn features on and off by it."""

    name: str
    version: str


def start(product: Product, mechanisms: tuple[str, ...]) -> methods.ConnectionStart:
    """The first method of a connection."""
    return methods.ConnectionStart(
        version_major=0,
        version_minor=9,
        server_properties={
            "product": product.name,
            "version": product.version,
            "platform": f"Python {platform.python_version()}",
            "copyright": "The amqpstore authors",
            "information": "Licensed under the Apache License 2.0",
            "capabilities": dict.fromkeys(_CAPABILITIES, True),
        },
        mechanisms=" ".join(mechanisms).encode(),
        locales=b"en_US",
    )


def shares_prefetch(product: Product, client: Mapping[str, Any]) -> bool:
    """Whether a client takes basic.qos without `global` for a limit that all of a channel shares.

    It is so in the specification. RabbitMQ has it limit each new consumer instead, and clients
    rely on that; but py-amqp, and kombu and Celery with it, go by the specification wherever the
    product has another name than RabbitMQ. Celery then raises the limit of consumers that run,
    for each task that has to wait for its time, and stops where that changes nothing.
    """
    return client.get("product") == "py-amqp" and product.name != "RabbitMQ"
