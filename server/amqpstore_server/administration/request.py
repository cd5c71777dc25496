"""The base of all requests of operators (see `requests`)."""

from __future__ import annotations

from typing import Any

import msgspec

from amqpstore_server.administration.operations import Administration
from amqpstore_server.administration.work import Work
from amqpstore_server.broker.monitoring.audit import By


class OperatorRequest(msgspec.Struct, tag_field="do", forbid_unknown_fields=True, kw_only=True):
    """A request; `done` carries it out, and returns the answer."""

    def done(self, administration: Administration, by: By) -> Work[Any]:
        raise NotImplementedError
