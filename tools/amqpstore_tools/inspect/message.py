"""One message: its record, its routing, its properties, its body, and the queues that hold it."""

from __future__ import annotations

import codecs
import json
import os
from typing import Any

from amqpstore.format.records import HEADER
from amqpstore_tools.inspect.queue import find_queues
from amqpstore_tools.offline.contents import StoredMessage, properties_of
from amqpstore_tools.offline.exits import NotFoundError, UsageError
from amqpstore_tools.offline.image import StoreImage
from amqpstore_tools.offline.provenance import id_in_log, provenance
from amqpstore_tools.offline.queues import Entry
from amqpstore_tools.offline.terminal import console, heading, shown, shown_lines, table, when

Facts = dict[str, Any]

FORMS = ("hex", "text", "json")

_PREVIEW_BYTES = 256
_HEX_BYTES = 16


def facts(image: StoreImage, message_id: int, form: str | None) -> Facts:
    """Return the facts about a message.

    Args: form, of the body, one of FORMS; None: a preview, as text or hex.
    Raises: NotFoundError, OSError.
    """
    stored = image.message(message_id)
    holders = image.holders(message_id)
    if stored is None:
        raise NotFoundError(_why_not(image, message_id, len(holders)))
    message_facts: Facts = {
        "directory": image.directory,
        "id": message_id,
        "record": _record(stored),
        **_batch(image, stored),
        **_content(image, stored, form),
        "queues": [
            {
                "vhost": queue.vhost,
                "queue": queue.name,
                "label": queue.label,
                "queue_id": queue.id,
                "level": queue.level or 0,
                **_entry(entry),
            }
            for queue, entry in holders
        ],
        "provenance": provenance(image, message_id),
    }
    return message_facts


def id_at(image: StoreImage, name: str, vhost: str | None, position: str) -> int:
    """Return the id of the message at a position of a queue: its sequence, after `PRIORITY:` if it
    has one. Of one that has left the queue, as long as the log says which it was.

    Raises: NotFoundError, UsageError, OSError.
    """
    priority, _, sequence = position.rpartition(":")
    if not (sequence.isascii() and sequence.isdigit() and (priority or "0").isdigit()):
        raise UsageError(f"'{position}' is not a position: a sequence, or PRIORITY:SEQUENCE")
    levels = [
        one for one in find_queues(image, name, vhost) if (one.level or 0) == int(priority or 0)
    ]
    for queue in levels:
        for columns in queue.columns():
            sequences = columns.sequences
            if int(sequence) in sequences:
                return int(columns.ids[list(sequences).index(int(sequence))])
    for queue in levels:
        if message_id := id_in_log(image, queue.id, int(sequence)):
            return message_id
    raise NotFoundError(
        f"queue {name} has no message at position {position}, and the log does not have it any more"
    )


def ids_of(image: StoreImage, name: str) -> list[int]:
    """Return the ids of the messages in queues whose property message-id is `name`: a publisher
    may have given it to several, and a dead letter has that of the message that it was.

    Reads all messages that queues have. Raises: NotFoundError, OSError.
    """
    ids = {one for queue in image.queues for columns in queue.columns() for one in columns.ids}
    found = [
        message_id
        for message_id, stored in image.messages(sorted(ids))
        if stored is not None and _name_of(stored) == name
    ]
    if not found:
        raise NotFoundError(f"no message in a queue has the message-id '{name}'")
    return found


def _name_of(stored: StoredMessage) -> object:
    """Return the property message-id, if the message has one that can be read."""
    try:
        return properties_of(stored.head().envelope.properties).get("message_id")
    except ValueError:
        return None


def _why_not(image: StoreImage, message_id: int, holders: int) -> str:
    if holders:
        return (
            f"message {message_id} is in {holders} queues, and no sound record of it exists: "
            "its segment is damaged or missing"
        )
    if message_id >= image.tail.end.message_id:
        return f"there is no message {message_id} yet: the next id is {image.tail.end.message_id}"
    return (
        f"there is no message {message_id}: it was acked and its segment removed, or its "
        "record is damaged"
    )


def _record(stored: StoredMessage) -> Facts:
    segment, record, _ = stored
    file = segment.files.open(segment.path)
    try:
        header = HEADER.unpack(file.read(record.offset, HEADER.size))
    finally:
        file.close()
    magic, kind, flags, batch, number, written_in, length, header_checksum, payload_checksum = (
        header
    )
    return {
        "segment": segment.number,
        "path": segment.path,
        "offset": record.offset,
        "end": record.end,
        "magic": magic.hex(),
        "kind": kind,
        "flags": flags,
        "batch": batch,
        "number": number,
        "written_for_segment": written_in,
        "payload_length": length,
        "header_checksum": f"{header_checksum:08x}",
        "payload_checksum": f"{payload_checksum:08x}",
    }


def _batch(image: StoreImage, stored: StoredMessage) -> Facts:
    """Return the LSN and the time of its batch; compaction does not keep them."""
    if not stored.segment.is_compacted:
        transaction = next(image.transactions(stored.segment, stored.record.offset), None)
        if transaction and transaction.record.batch == stored.record.batch:
            return {"lsn": transaction.lsn, "published_ms": transaction.time_ms}
    return {"lsn": None, "published_ms": None}


def _content(image: StoreImage, stored: StoredMessage, form: str | None) -> Facts:
    content: Facts = {"stored_body_bytes": stored.stored_body_bytes}
    try:
        message = stored.message(image.decoder)
    except ValueError as error:
        content["body_reason"] = str(error)
        try:
            message = stored.head()
        except ValueError:
            return content
        envelope, body = message.envelope, None
    else:
        envelope, body = message.envelope, message.body
    content |= {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
    try:
        content["properties"] = properties_of(envelope.properties)
    except ValueError as error:
        content |= {"properties_hex": envelope.properties.hex(), "properties_reason": str(error)}
    if body is not None:
        content |= {"body_bytes": len(body), **_body(body, form)}
    return content


def _body(body: bytes, form: str | None) -> Facts:
    part = body if form else body[:_PREVIEW_BYTES]
    is_cut = len(part) < len(body)
    if form == "json":
        try:
            return {"body_form": "json", "body": json.loads(body)}
        except (ValueError, RecursionError) as error:
            raise NotFoundError(f"the body is not JSON: {error}; --body text shows it") from None
    if form != "hex":
        try:
            # A character that is cut at the end of the preview is not an error.
            text = part.decode() if not is_cut else _whole_characters(part)
        except UnicodeDecodeError:
            if form == "text":
                text = part.decode("utf-8", "backslashreplace")
                return {"body_form": "text", "body": text, "body_is_cut": is_cut}
        else:
            if form == "text" or "\0" not in text:
                return {"body_form": "text", "body": text, "body_is_cut": is_cut}
    return {"body_form": "hex", "body": part.hex(), "body_is_cut": is_cut}


def _whole_characters(part: bytes) -> str:
    """Decode a text except a character that is cut at its end. Raises: UnicodeDecodeError."""
    return codecs.getincrementaldecoder("utf-8")().decode(part)


def _entry(entry: Entry) -> Facts:
    return {
        "sequence": entry.sequence,
        "size": entry.size,
        "expires_ms": entry.expires_ms,
        "delivery_count": entry.delivery_count,
        "priority": entry.priority,
    }


def show(facts: Facts) -> None:
    """Print the facts."""
    from rich.text import Text

    out = console()
    out.print(Text(f"Message {facts['id']}", "bold"))
    record = facts["record"]
    where = f"{os.path.relpath(record['path'], facts['directory'])} at {record['offset']:,}"
    out.print(f"  {shown(where)} to {record['end']:,}")
    if facts["lsn"]:
        published = when(facts["published_ms"])
        out.print(f"  published in the batch of LSN {facts['lsn']:,}, {published} UTC")
    out.print(heading("Record header"))
    rows = table("field", "value")
    for name in list(record)[4:]:
        rows.add_row(name, str(record[name]))
    out.print(rows)
    if "exchange" in facts:
        out.print(heading("Routing"))
        exchange = shown(facts["exchange"]) or "(the default exchange)"
        out.print(f"  exchange     {exchange}")
        out.print(f"  routing key  {shown(facts['routing_key'])}")
        _show_properties(facts)
    _show_body(facts)
    _show_provenance(facts["provenance"])
    out.print(heading(f"Queues that hold it: {len(facts['queues'])}"))
    if not facts["queues"]:
        out.print("  none: it is garbage")
        return
    rows = table(
        "vhost",
        "queue",
        "sequence",
        "delivered",
        "prio",
        "expires (UTC)",
        right="sequence delivered prio",
        wrap="queue",
    )
    for queue in facts["queues"]:
        rows.add_row(
            shown(queue["vhost"] if queue["vhost"] is not None else "-", 20),
            shown(queue["label"]),
            str(queue["sequence"]),
            str(queue["delivery_count"]),
            str(queue["priority"]),
            when(queue["expires_ms"])[:19],
        )
    out.print(rows)


def _show_properties(found: Facts) -> None:
    out = console()
    out.print(heading("Properties"))
    if "properties_hex" in found:
        out.print(f"  not properties of class basic: {shown(found['properties_reason'])}")
        out.print(f"  {found['properties_hex']}")
        return
    rows = table("property", "value", wrap="value")
    for name, value in found["properties"].items():
        if name == "headers":
            for key, one in value.items():
                rows.add_row(f"header {shown(key, 40)}", shown(one))
        elif name == "timestamp":
            rows.add_row(name, f"{value} ({when(1000 * value)[:19]} UTC)")
        else:
            rows.add_row(name, shown(value))
    if rows.row_count:
        out.print(rows)
    else:
        out.print("  none")


def _show_body(facts: Facts) -> None:
    from rich.text import Text

    out = console()
    if "body_reason" in facts:
        out.print(heading("Body"))
        out.print(Text(f"  cannot be read: {shown(facts['body_reason'])}", "red"))
        return
    stored = facts["stored_body_bytes"]
    compressed = f", compressed to {stored:,}" if facts["record"]["flags"] else ""
    out.print(heading(f"Body: {facts['body_bytes']:,} bytes{compressed}"))
    body = facts["body"]
    if facts["body_form"] == "hex":
        text = hex_dump(bytes.fromhex(body))
    elif facts["body_form"] == "json":
        text = shown_lines(json.dumps(body, indent=2, ensure_ascii=False))
    else:
        text = shown_lines(body)
    if text:
        out.print(Text(text), soft_wrap=True)
    if facts.get("body_is_cut"):
        out.print("  ... --body hex, text or json shows all of it", style="dim")


def _show_provenance(provenance: Facts) -> None:
    out = console()
    out.print(heading("What happened to it"))
    for trail in provenance["trail"]:
        if trail["came_from"]:
            out.print(f"  message {trail['came_from']} became message {trail['id']}")
        rows = table("when (UTC)", "what", "vhost", "queue", "sequence", right="sequence")
        for step in trail["steps"]:
            what = step["what"]
            if more := step.get("deliveries") or step.get("reason"):
                what = f"{what} ({shown(str(more))})"
            queue = shown(step["queue"] or f"#{step['queue_id']} (deleted)")
            vhost = shown(step["vhost"] if step["vhost"] is not None else "-", 20)
            rows.add_row(when(step["at_ms"]), what, vhost, queue, str(step["sequence"]))
        out.print(rows)
        for position in trail["now_in"]:
            if holder := position.get("held_by"):
                to = f"consumer {holder['consumer_tag']}" if holder["consumer_tag"] else "basic.get"
                out.print(
                    f"  not acked in {shown(position['queue'])}: {shown(to)} of user "
                    f"{shown(holder['user'])}, {shown(holder['connection'])} ({holder['channel']})"
                )
        for death in trail.get("deaths", []):
            if isinstance(death, dict):
                out.print(
                    f"  died in {shown(death.get('queue'))}: {shown(death.get('reason'))}, "
                    f"{shown(death.get('count'))} times"
                )
    if provenance["clients"]:
        rows = table("when (UTC)", "what", "queue", "user", "connection", "consumer")
        for client in provenance["clients"]:
            queue = shown(client["queue"] or f"#{client['queue_id']} (deleted)")
            connection = shown(f"{client['connection']} ({client['channel']})")
            tag = shown(client["consumer_tag"] or "", 40)
            user = shown(client["user"], 40)
            rows.add_row(when(client["at_ms"]), client["what"], queue, user, connection, tag)
        out.print(rows)
    for note in provenance["notes"]:
        out.print(f"  {note}", style="dim")


def hex_dump(body: bytes) -> str:
    """Return lines of offset, 16 bytes in hex, and the printable ASCII among them."""
    lines = []
    for offset in range(0, len(body), _HEX_BYTES):
        row = body[offset : offset + _HEX_BYTES]
        text = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{offset:08x}  {row[:8].hex(' '):23}  {row[8:].hex(' '):23}  |{text}|")
    return "\n".join(lines)
