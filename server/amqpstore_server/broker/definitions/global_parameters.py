"""Parameters of no virtual host, which are kept among the policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqpstore import Store
from amqpstore.catalog.catalog import Change
from amqpstore_server.broker.definitions.accepted import (
    CLUSTER_ID,
    CLUSTER_NAME,
    check_acting_parameters,
)
from amqpstore_server.broker.definitions.rows import name_key
from amqpstore_server.broker.definitions.stored import misshapen

MAX_GLOBAL_PARAMETERS = 256
"""A limit, as they are listed together, and nothing here reads most of them."""

_GLOBAL = "global_parameter"
"""The field of their rows that the rows of policies do not have."""


class GlobalParameters:
    """The parameters of no virtual host in a store, in `values` by their names."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.values: dict[str, Any] = {
            row[_GLOBAL]: row["value"]
            for row in store.definitions.rows("policies").values()
            # Rows that cannot be used are logged with those of policies.
            if isinstance(row, dict) and is_global(row) and not misshapen("policies", row)
        }

    @property
    def cluster_name(self) -> str | None:
        """The name that operators have given the broker, where RabbitMQ keeps it."""
        name = self.values.get(CLUSTER_NAME)
        return name if isinstance(name, str) else None

    @property
    def cluster_id(self) -> str:
        """The identity that does not change with the name: the store's, or one that came with
        definitions.
        """
        imported = self.values.get(CLUSTER_ID)
        own = f"amqpstore-cluster-id-{self._store.store_id.hex()}"
        return imported if isinstance(imported, str) else own

    def check(self, values: Mapping[str, Any]) -> None:
        """Make sure that there is room for these, and that they act. Raises: ValueError."""
        check_acting_parameters(values)
        stay = {name for name in self.values if values.get(name, "") is not None}
        new = {name for name, value in values.items() if value is not None}
        if new - stay and len(stay | new) > MAX_GLOBAL_PARAMETERS:
            raise ValueError(f"there may be {MAX_GLOBAL_PARAMETERS} parameters of no virtual host")

    def define(self, values: Mapping[str, Any]) -> None:
        """Set some of them; None removes one. Durable on return.

        Raises: ValueError, TypeError, OverflowError (nothing is changed then).
        """
        self.check(values)
        self._store.definitions.define(
            [
                Change(
                    "policies",
                    name_key(f"\0{_GLOBAL}", name),
                    None if value is None else {_GLOBAL: name, "value": value},
                )
                for name, value in values.items()
            ]
        )
        for name, value in values.items():
            self.values.pop(name, None)
            if value is not None:
                self.values[name] = value


def is_global(row: Mapping[str, Any]) -> bool:
    """Tell whether a row among the policies is that of a parameter of no virtual host."""
    return _GLOBAL in row
