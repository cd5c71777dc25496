"""Whether it still is the etcd that it was.

An etcd that was made anew has another cluster id. One that was restored from a backup often has
the same, as it is computed from the addresses of its members: but its revisions go back. In both, a
revision that is known here belongs to another change there, and nothing may be compared with it.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from amqpstore_server.etcd.errors import OtherEtcdError
from amqpstore_server.etcd.messages import Header


class EtcdIdentity(NamedTuple):
    """An etcd: its cluster id, and the highest revision that a linearizable answer had.

    A cluster id of 0 stands for any.
    """

    cluster: int = 0
    revision: int = 0


class IdentityCheck:
    """Compares each answer with what was known when it was asked for; safe in all threads."""

    def __init__(self, known: EtcdIdentity) -> None:
        self._known = known
        self._lock = threading.Lock()
        self._went_back: OtherEtcdError | None = None
        self._other: OtherEtcdError | None = None

    @property
    def known(self) -> EtcdIdentity:
        return self._known

    @property
    def objection(self) -> str:
        """The reason why another etcd answers than the one that is known; empty if none does."""
        return str(self._other) if self._other is not None else ""

    def begin(self) -> int:
        """Return the revision that a linearizable answer to a request of now has at least.

        Raises: OtherEtcdError if revisions went back.
        """
        # For good: revisions go on from where they went back to, and will be as high again.
        if self._went_back is not None:
            raise self._went_back
        return self._known.revision

    def check(self, header: Header, least: int | None) -> None:
        """Look at an answer. Args: least, what `begin` returned before the request was sent;
        None if the answer is not linearizable.

        Raises: OtherEtcdError.
        """
        with self._lock:
            # The first answer of all decides for a member that knows no etcd yet; from then on it
            # is in MEMBER.
            cluster = self._known.cluster or header.cluster_id
            if header.cluster_id != cluster:
                self._other = OtherEtcdError(
                    f"it belongs to the etcd cluster {header.cluster_id:x}, and this group to "
                    f"{cluster:x}: is the endpoint right, or was etcd made anew?"
                )
                raise self._other
            # Only a linearizable answer can prove it: any other may come from a member of etcd
            # that is behind.
            if least is not None and header.revision < least:
                self._other = self._went_back = OtherEtcdError(
                    f"etcd is at revision {header.revision} and was at {least} before: was it "
                    "restored from a backup? It is not used any more until this process is "
                    "started again"
                )
                raise self._went_back
            # A wrong endpoint may be one of several. The objection goes with the next right
            # answer, unless revisions went back.
            self._other = None
            revision = self._known.revision
            if least is not None:
                revision = max(revision, header.revision)
            self._known = EtcdIdentity(cluster, revision)
