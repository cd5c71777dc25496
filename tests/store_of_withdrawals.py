"""The store that withdrawals belong to, for broken copies that ack or sync what was withdrawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from amqpstore import Store
from amqpstore.queues.withdrawals import Withdrawals


def noted_stores(patch: pytest.MonkeyPatch) -> Mapping[Withdrawals, Store]:
    """Return a mapping to which each store is added that is opened from now on."""
    stores: WeakKeyDictionary[Withdrawals, Store] = WeakKeyDictionary()
    init = Store.__init__

    def noted(self: Store, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        stores[self.withdrawals] = self

    patch.setattr(Store, "__init__", noted)
    return stores
