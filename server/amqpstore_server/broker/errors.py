"""Requests that the broker refuses; each front door turns these errors into its protocol's."""

from __future__ import annotations


class BrokerError(Exception):
    """The request was refused and changed nothing."""


class NotFoundError(BrokerError):
    """A queue, exchange or virtual host of that name does not exist."""


class SetAsideError(BrokerError):
    """The queue has failed, and is not served until the next start."""


class AccessRefusedError(BrokerError):
    """The name is reserved, or another connection or consumer has the queue exclusively."""


class ResourceLockedError(BrokerError):
    """The queue is exclusive to another connection."""


class PreconditionFailedError(BrokerError):
    """The request does not match the state of what exists."""


class NotAllowedError(BrokerError):
    """The request is never allowed, whatever exists."""


class ResourceExhaustedError(BrokerError):
    """The request exceeds a limit, or there is no room for it."""


class UnknownTypeError(BrokerError):
    """There is no exchange type of that name."""
