"""What the broker refuses, in its own terms; a front door turns each into its protocol's."""

from __future__ import annotations


class BrokerError(Exception):
    """The request was refused and changed nothing."""


class NotFoundError(BrokerError):
    """A queue, exchange or virtual host of that name does not exist."""


class SetAsideError(BrokerError):
    """The queue has failed, and is not served until the next start."""


class AccessRefusedError(BrokerError):
    """The name is reserved, or somebody has the queue for itself alone."""


class ResourceLockedError(BrokerError):
    """The queue is exclusive to another connection."""


class PreconditionFailedError(BrokerError):
    """What exists is not what the request takes for granted."""


class NotAllowedError(BrokerError):
    """The request can never be granted, whatever exists."""


class ResourceExhaustedError(BrokerError):
    """The client sent more than there is room for."""


class UnknownTypeError(BrokerError):
    """There is no exchange type of that name."""
