"""The provenance of a message, in the one form in which the admin socket, the HTTP API and the
offline tools give it.

It knows nothing of a running broker. What an answer says:

- `trail`: the message, those that it was before, and those that any of these became in other
  queues, each with `id`, `came_from` (the id of the message that became this one; None if it was
  published, or if the log does not have that one any more), `exchange`, `routing_key`,
  `properties`, `body_bytes`,
  `published_ms` and `lsn` of the batch (None if that is gone), `segment` of its record, `steps`,
  `now_in` and `became`;
- `now_in`: the queues that have it: `vhost`, `queue`, `queue_id` and `sequence`; a running broker
  adds `held_by`, the client that got it and has not acked it: `connection`, `channel`, `user` and
  `consumer_tag` (None for basic.get); None while no client has it;
- `steps`: what happened to it, in order: `at_ms`, `lsn`, `what`, `vhost`, `queue` and `sequence`;
  `deliveries`, how often it had been delivered by then, `expires_ms`. `what` is "enqueued",
  "delivered", "left" (it was acked, or went on as another message) or "removed" (purged, or
  unreadable). One that left has a `reason`: that in x-death if it became a dead letter, "delayed"
  if its delay was over, "moved", or, as its client is noted, "acked" or "rejected"; else None;
- `clients`: the clients that had to do with the message in any of its queues, oldest first:
  `at_ms`, `what` ("published", "delivered", "acked", "rejected" or "requeued"), `connection`,
  `channel`, `user` and `consumer_tag` (None for basic.get, and for a publisher), `vhost`, `queue`,
  `queue_id` and `sequence`;
- `deaths`: what its header x-death says, if there is one;
- `log`: what was read; `notes`: what the answer cannot know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from amqpstore import Message
from amqpstore.format.records import OperationKind
from amqpstore.provenance.client_trails import Note, What
from amqpstore.provenance.trails import Provenance, QueuePosition, Trail, TrailStep
from amqpstore_server.protocol.content import decode_properties
from amqpstore_server.protocol.errors import MalformedError

_WHAT = {
    OperationKind.ENQUEUE: "enqueued",
    OperationKind.ACK: "left",
    OperationKind.DELIVERED: "delivered",
    OperationKind.PURGE: "removed",
}

_SETTLED = (What.ACKED, What.REJECTED)

Row = dict[str, Any]


class TrailQueue(NamedTuple):
    """The virtual host and name of a queue of the store."""

    vhost: str | None
    queue: str | None


UNKNOWN = TrailQueue(None, None)

Names = Callable[[int], TrailQueue]
"""Returns the name of a queue by its id; `UNKNOWN` for one that is deleted."""


def is_copy_in(names: Names) -> Callable[[Message, Message, int], bool]:
    """Return what tells whether a message is what another became when it left a queue."""

    def is_copy(original: Message, copy: Message, queue_id: int) -> bool:
        before, after = original.envelope, copy.envelope
        if (before.exchange, before.routing_key, before.properties) == (
            after.exchange,
            after.routing_key,
            after.properties,
        ):
            return True  # it was moved as it is
        deaths = _deaths(after.properties)
        if deaths and deaths[0].get("queue") == names(queue_id).queue:
            return True
        # A delayed exchange changes the sign of this header.
        waited = _headers(before.properties).get("x-delay")
        return isinstance(waited, int) and _headers(after.properties).get("x-delay") == -waited

    return is_copy


def trail_answer(found: Provenance, names: Names, properties: Callable[[bytes], Row]) -> Row:
    """Return an answer. Args: properties, decodes properties for JSON; raises ValueError."""
    return {
        "trail": [_trail(trail, found, names, properties) for trail in found.trails],
        "clients": [_client(note, names) for note in found.clients],
        "log": {
            "first_lsn": found.first_lsn or None,
            "last_lsn": found.last_lsn or None,
            "read_bytes": found.read_bytes,
            "is_cut": found.is_cut,
            "damaged": found.damaged,
            "missing_segments": found.missing,
        },
        "notes": _notes(found),
    }


def _trail(
    trail: Trail, provenance: Provenance, names: Names, properties: Callable[[bytes], Row]
) -> Row:
    row: Row = {
        "id": trail.id,
        "came_from": trail.came_from or None,
        "published_ms": trail.time_ms or None,
        "lsn": trail.lsn or None,
        "segment": trail.segment or None,
        "steps": [_step(step, trail, provenance, names) for step in trail.steps],
        "steps_left_out": trail.steps_left_out,
        "now_in": [_position(position, names) for position in trail.positions],
        "became": trail.became,
    }
    if trail.message is not None:
        envelope = trail.message.envelope
        row |= {
            "exchange": envelope.exchange,
            "routing_key": envelope.routing_key,
            "body_bytes": len(trail.message.body),
        }
        try:
            row["properties"] = properties(envelope.properties)
        except ValueError as error:
            row["properties_reason"] = str(error)
        else:
            deaths = row["properties"].get("headers", {}).get("x-death")
            if isinstance(deaths, list):
                row["deaths"] = deaths
    return row


def _step(step: TrailStep, trail: Trail, found: Provenance, names: Names) -> Row:
    kind = OperationKind(step.kind)
    row = {
        "at_ms": step.time_ms,
        "lsn": step.lsn,
        "what": _WHAT[kind],
        **_position(step.position, names),
    }
    if kind is OperationKind.DELIVERED:
        row["deliveries"] = step.detail
    elif kind is OperationKind.ENQUEUE and step.detail:
        row["expires_ms"] = step.detail
    elif kind is OperationKind.ACK:
        row["reason"] = _reason(step, trail, found, names)
    return row


def _reason(step: TrailStep, trail: Trail, found: Provenance, names: Names) -> str | None:
    """Return why a message left a queue, as far as that is known."""
    for copy in found.trails:
        # What it became was published in the batch in which it left.
        if copy.id not in trail.became or copy.lsn != step.lsn or copy.message is None:
            continue
        raw = copy.message.envelope.properties
        deaths = _deaths(raw)
        if deaths and deaths[0].get("queue") == names(step.position.queue_id).queue:
            return str(deaths[0].get("reason"))
        waited = _headers(raw).get("x-delay")
        return "delayed" if isinstance(waited, int) and waited < 0 else "moved"
    for note in found.clients:
        if (note.queue_id, note.first_sequence) == step.position and note.what in _SETTLED:
            return note.what.name.lower()
    return None


def _client(note: Note, names: Names) -> Row:
    return {
        "at_ms": note.at_ms,
        "what": note.what.name.lower(),
        **note.client._asdict(),
        "consumer_tag": note.consumer_tag or None,
        **_position(QueuePosition(note.queue_id, note.first_sequence), names),
    }


def _position(position: QueuePosition, names: Names) -> Row:
    name = names(position.queue_id)
    return {
        "vhost": name.vhost,
        "queue": name.queue,
        "queue_id": position.queue_id,
        "sequence": position.sequence,
    }


def _notes(provenance: Provenance) -> list[str]:
    notes = [
        "the exchanges on its way to its queues are not noted: only the one it was published to",
        "a message that was acked before its delivery was written has no step for the delivery",
    ]
    if not provenance.clients:
        notes.append(
            "no clients are noted: that is only done for persistent messages, up to "
            "provenance_bytes on the disk, and a crash loses what was noted last"
        )
    if not provenance.trails:
        notes.append("the log does not say which message was there: the batch is gone")
    if any(not trail.lsn for trail in provenance.trails):
        notes.append(
            "the batch in which it was published is no longer in the log: when that was, and which "
            "queues it has left since, is not known"
        )
    if any(trail.message is None for trail in provenance.trails):
        notes.append("its record is gone: nothing needed it any more, or it is damaged")
    if provenance.is_cut:
        read = f"{provenance.read_bytes / (1 << 20):,.0f} MiB of the log"
        after = (
            f"after {read}, at batch {provenance.last_lsn}"
            if provenance.last_lsn
            else f"after {read}"
        )
        notes.append(f"reading stopped {after}: there is more, and later steps may be missing")
    if provenance.missing:
        notes.append("segments were removed while they were read")
    if provenance.damaged:
        notes.append("parts of the log are damaged, and could not be used")
    return notes


def _headers(raw: bytes) -> Mapping[str, Any]:
    try:
        return decode_properties(raw).headers or {}
    except MalformedError:
        return {}


def _deaths(raw: bytes) -> list[Mapping[str, Any]]:
    deaths = _headers(raw).get("x-death")
    return [one for one in deaths if isinstance(one, dict)] if isinstance(deaths, list) else []
