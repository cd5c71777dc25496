"""A store against lists, as in `test_store`, with a clock: messages that expire, or are withdrawn.

No consumer has a withdrawn message: the log says nothing about it before it is acked, so that a
crash makes it ready again with the count that it had.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from amqpstore import Message, Run
from amqpstore.format.index import PagedFile
from tests.property.test_store import (
    PERSISTENT,
    Model,
    StoreAgainstPlainLists,
    Stored,
    indexes,
)


class StoreWithAClock(StoreAgainstPlainLists):
    """`now_ms` only goes on, through reopens as well."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1000

    def _where(self, condition: Callable[[Model], object], place: int) -> Model | None:
        models = [model for model in self.models.values() if condition(model)]
        return models[place % len(models)] if models else None

    @precondition(lambda self: self.models)
    @rule(
        chosen=st.lists(indexes, min_size=1, max_size=3),
        sizes=st.lists(st.integers(0, 120), min_size=1, max_size=4),
        persistent=st.sampled_from([True, True, True, False]),
        after_ms=st.integers(1, 40),
    )
    def publish_for_a_while(
        self, chosen: list[int], sizes: list[int], persistent: bool, after_ms: int
    ) -> None:
        self.publish(chosen, sizes, persistent, expires_ms=self.now_ms + after_ms)

    @precondition(lambda self: self.models)
    @rule(place=indexes, times_ms=st.lists(st.integers(0, 40), min_size=4, max_size=14))
    def page_out_for_a_while(self, place: int, times_ms: list[int]) -> None:
        """Index files in which some messages expire, in any order, and some never."""
        at = place % len(self.models)
        for time_ms in times_ms:
            expires_ms = self.now_ms + time_ms if time_ms else 0
            self.publish([at], [20], persistent=True, expires_ms=expires_ms)
        self.sync()
        self.checkpoint(times=1)

    @rule(passed_ms=st.integers(1, 25))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @precondition(lambda self: self.models)
    @rule(
        place=indexes,
        bodies=st.booleans(),
        then=st.sampled_from(["drop", "move", "put back", "hold", "hold"]),
    )
    def withdraw_expired(self, place: int, bodies: bool, then: str) -> None:
        model = self._where(lambda model: self._due(model), place)
        if model is None:
            model = self._model(place)
        due = self._due(model)
        run = self.store.withdrawals.withdraw_expired(
            model.queue, self.now_ms, bodies=bodies or then == "move"
        )
        if not due:
            assert run is None
            # What was too early has moved on.
            assert not 0 < self.store.withdrawals.next_expiry(model.queue) <= self.now_ms
            return
        assert isinstance(run, Run), run
        assert run.expires_ms == min(stored.expires_ms for stored in due)
        assert run.messages is not None or not bodies
        self._withdrawn(model, run)
        self._settle(model, len(model.withdrawn) - 1, then)

    @precondition(lambda self: any(model.ready for model in self.models.values()))
    @rule(place=indexes, limit=st.integers(1, 6))
    def withdraw(self, place: int, limit: int) -> None:
        model = self._where(lambda model: model.ready, place)
        assert model is not None
        run = self.store.withdrawals.withdraw(model.queue, limit)
        assert isinstance(run, Run), run
        assert run.first_sequence == model.ready[0].sequence
        assert run.count <= limit
        self._withdrawn(model, run)

    @precondition(lambda self: any(model.withdrawn for model in self.models.values()))
    @rule(place=indexes, then=st.sampled_from(["drop", "move", "put back", "put back"]))
    def settle_withdrawn(self, place: int, then: str) -> None:
        model = self._where(lambda model: model.withdrawn, place)
        assert model is not None
        self._settle(model, place % len(model.withdrawn), then)

    @precondition(lambda self: any(model.ready for model in self.models.values()))
    @rule(
        place=indexes,
        ahead=indexes,
        skipped=st.sampled_from([0, 0, 0, 1]),
        limit=st.integers(1, 6),
        acked=st.booleans(),
    )
    def take_from(self, place: int, ahead: int, skipped: int, limit: int, acked: bool) -> None:
        model = self._where(lambda model: model.ready, place)
        assert model is not None
        first = model.ready[ahead % len(model.ready)].sequence + skipped
        run = self.store.take(model.queue, limit, acked=acked, first_sequence=first)
        behind = [stored for stored in model.ready if stored.sequence >= first]
        if not behind:
            assert run is None
            return
        assert isinstance(run, Run), run
        assert run.first_sequence == behind[0].sequence
        assert run.count <= limit
        taken = self._cut(model, run)
        if not acked:
            model.taken.append(
                (run, [replace(one, deliveries=one.deliveries + 1) for one in taken])
            )

    @precondition(lambda self: any(model.taken for model in self.models.values()))
    @rule(place=indexes)
    def redeliver(self, place: int) -> None:
        model = self._where(lambda model: model.taken, place)
        assert model is not None
        at = place % len(model.taken)
        run, held = model.taken[at]
        self.store.redeliver(model.queue, run)
        again = [
            replace(one, deliveries=one.deliveries + 1, requeues=one.requeues + 1) for one in held
        ]
        assert {run.delivery_count} == {one.requeues for one in again}
        model.taken[at] = run, again

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def look_at_the_head(self, place: int) -> None:
        model = self._model(place)
        message = self.store.withdrawals.peek(model.queue)
        if model.ready:
            assert isinstance(message, Message)
            assert message.body == model.ready[0].body
        else:
            assert message is None

    @precondition(lambda self: self.models)
    @rule(place=indexes)
    def count_bytes(self, place: int) -> None:
        model = self._model(place)
        expected = sum(len(stored.body) for stored in model.ready)
        assert self.store.stored.sizes.ready_bytes(model.queue) == expected

    def _due(self, model: Model) -> list[Stored]:
        return [stored for stored in model.ready if 0 < stored.expires_ms <= self.now_ms]

    def _cut(self, model: Model, run: Run) -> list[Stored]:
        """Take the run's messages out of the ready ones."""
        taken = [one for one in model.ready if run.first_sequence <= one.sequence < run.end]
        model.ready = [one for one in model.ready if one not in taken]
        assert [one.sequence for one in taken] == list(range(run.first_sequence, run.end))
        assert {run.expires_ms} == {one.expires_ms for one in taken}
        assert {run.delivery_count} == {one.requeues for one in taken}
        if run.messages is not None:
            assert [message.body for message in run.messages] == [one.body for one in taken]
        return taken

    def _withdrawn(self, model: Model, run: Run) -> None:
        model.withdrawn.append((run, self._cut(model, run)))

    def _settle(self, model: Model, at: int, then: str) -> None:
        if then == "hold":
            return
        run, held = model.withdrawn.pop(at)
        if then == "move" and run.messages is not None and held[0].persistent:
            self._move(model, run, held)
        elif then == "put back":
            self.store.withdrawals.put_back(model.queue, run)
            model.ready = sorted([*model.ready, *held], key=lambda stored: stored.sequence)
        else:
            self.store.ack(model.queue, run)

    def _move(self, model: Model, run: Run, held: list[Stored]) -> None:
        """Move messages to the first queue, as dead-lettering does: they are durable, and then
        ready there.
        """
        target = next(iter(self.models.values()))
        first = target.queue.next_sequence
        with self.store.transaction() as transaction:
            bodies = [Message(PERSISTENT, stored.body) for stored in held]
            transaction.publish([target.queue], bodies)
            transaction.ack(model.queue, run)
        target.ready += [
            Stored(first + place, stored.body, persistent=True) for place, stored in enumerate(held)
        ]
        self.sync()

    @invariant()
    def nothing_expires_unnoticed(self) -> None:
        for model in self.models.values():
            times_ms = [stored.expires_ms for stored in model.ready if stored.expires_ms]
            found = model.queue.first_to_expire()
            assert (found is not None) >= bool(times_ms)
            if isinstance(found, PagedFile):
                # The time of a page may be too early: then the page is read, and nothing in it has
                # expired.
                assert found.expires_ms <= min(times_ms, default=found.expires_ms)
            elif found is not None:
                assert found.expires_ms == min(times_ms)
            spans = len(model.queue.ready) + len(model.queue.paged)
            assert len(model.queue.expiry) <= 2 * spans + 80


TestStoreWithAClock = StoreWithAClock.TestCase
TestStoreWithAClock.settings = settings(max_examples=80, stateful_step_count=60)
