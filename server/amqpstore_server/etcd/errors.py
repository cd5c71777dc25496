"""Errors of an endpoint, of its answer, or of all of etcd."""

from __future__ import annotations

UNAUTHENTICATED = 16
INVALID_ARGUMENT = 3
NOT_FOUND = 5


class EtcdError(Exception):
    """A request to etcd has failed."""

    def __reduce__(self) -> tuple[object, ...]:
        # As a PicklableError of the engine, which this package does not know.
        return Exception.__new__, (self.__class__, *self.args), self.__dict__


class MalformedAnswerError(EtcdError):
    """An answer is not what etcd's gateway says."""


class EndpointError(EtcdError):
    """An endpoint did not do what it was asked for.

    `may_happen` tells whether it may have done it, or will do it later. `code` is the gRPC status
    code of its answer; -1 without one.
    """

    def __init__(self, url: str, reason: str, *, may_happen: bool, code: int = -1) -> None:
        self.url = url
        self.reason = reason
        self.may_happen = may_happen
        self.code = code
        super().__init__(f"{url}: {reason}")


class LeaseGoneError(EndpointError):
    """The request was refused because its lease is gone, or never was."""


class EtcdUnavailableError(EtcdError):
    """No endpoint did what it was asked for."""

    def __init__(self, problems: tuple[EndpointError, ...]) -> None:
        self.problems = problems
        count = "the only endpoint" if len(problems) == 1 else f"all {len(problems)} endpoints"
        super().__init__(f"etcd: {count} failed: " + "; ".join(str(one) for one in problems))


class OtherEtcdError(EtcdError):
    """Raised when this is another etcd than before, or its revisions went back: the revisions that
    are known here mean nothing there.
    """


class CompactedError(EtcdError):
    """A watch asks for revisions that etcd has compacted: the keys must be read anew."""

    def __init__(self, revision: int, compacted: int) -> None:
        self.revision = revision
        self.compacted = compacted
        super().__init__(f"revision {revision} is asked for, and etcd has compacted to {compacted}")


class NotFitError(Exception):
    """A lease was not renewed, as the caller's disk or event loop makes no progress."""
