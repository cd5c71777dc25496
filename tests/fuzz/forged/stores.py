"""A broker's store that has seen everything, and ways to have its files say something else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import struct
from base64 import b64encode
from typing import Any

import msgpack
import zstandard
from crc32c import crc32c

from amqpstore import Envelope, Message, Queue, Run, Store
from amqpstore.catalog.catalog import TABLES, Change, LmdbCatalog
from amqpstore.catalog.definitions import HEADER as COPY_HEADER
from amqpstore.catalog.definitions import copy_of, read_copy, write_copy
from amqpstore.format.index import BLOCK
from amqpstore.format.records import HEADER, MAGIC, Gap, Kind, Record, scan
from amqpstore.identity import marker
from amqpstore.system.files import OsFiles
from amqpstore.upkeep.worker import InlineWorker
from amqpstore_server.broker.broker import Broker, Defined
from amqpstore_server.broker.definitions.predeclared import DEFAULT_VHOST
from amqpstore_server.broker.exchanges import EXCHANGE_TYPES
from amqpstore_server.broker.rights.permissions import ALL
from amqpstore_server.broker.rules.policy import Policy
from amqpstore_server.broker.work.services import BrokerServices
from amqpstore_server.logins.users import Users
from tests.fuzz.forged.forger import Forger
from tests.unit.check.stores import OPTIONS

ENVELOPE = Envelope(
    "amq.topic", "orders.new", b"\x30\0" + b"\0\0\0\x0b\x01aF\0\0\0\4\x01bt\1" + b"\x02"
)
"""An envelope with a table within a table among its headers, and delivery mode 2."""

_OPERATION = struct.Struct(">BBHIQQQQ")
_LEAD = struct.Struct(">4sBBHQII")


def opened(directory: str) -> Store:
    return Store.open(directory, options=OPTIONS, worker=InlineWorker())


def broker_of(store: Store) -> Broker:
    """The broker on top of a store, without its doors."""
    services = BrokerServices(
        store,
        clock=store.clock,
        random=random.Random("forged").random,
        make_name=lambda: "made",
        exchange_types=EXCHANGE_TYPES,
    )
    return Broker(services)


def make_store(directory: str, seed: int) -> None:
    """A store with rows in most tables, records of every kind, and a log behind its checkpoint."""
    rng = random.Random(seed)
    store = opened(directory)
    broker = broker_of(store)
    _define(broker)
    queues = [queue for queue in store.queues.values() if queue.durable]
    for _ in range(60):
        _step(store, queues, rng)
    run = store.take(queues[0], 2)
    transaction = store.transaction()
    if isinstance(run, Run):
        transaction.ack(queues[0], run)
    transaction.publish([queues[1]], [Message(ENVELOPE, b"one")], priority=3, expires_ms=1 << 45)
    transaction.prepare({"vhost": DEFAULT_VHOST, "user": "guest", "xid": [1, b"global", b"branch"]})
    store.sync()
    store.upkeep.checkpoint()
    store.publish(queues, [Message(ENVELOPE, b"late"), Message(ENVELOPE, b"last")])
    store.sync()
    store.abandon()
    catalog = LmdbCatalog(f"{directory}/catalog", False)
    write_copy(OsFiles(), directory, copy_of(catalog.rows("store")["store_id"], catalog))
    catalog.close()


def _define(broker: Broker) -> None:
    policy = Policy("short", "^o", "queues", 1, {"max-length": 900, "message-ttl": 1 << 40})
    broker.define(
        Defined(
            [DEFAULT_VHOST, "other"],
            {
                ("guest", DEFAULT_VHOST): {
                    **ALL,
                    "topic": {"amq.topic": {"write": ".*", "read": ""}},
                }
            },
            {(DEFAULT_VHOST, False): [policy], (DEFAULT_VHOST, True): [policy]},
        ),
        Users.changes({"guest": {"hash": "$argon2id$v=19$m=65536,t=3,p=4$YQ$YQ", "tags": ["x"]}}),
    )
    vhost = broker.vhost(DEFAULT_VHOST)
    for name, kind in (("news", "topic"), ("wide", "headers"), ("late", "x-delayed-message")):
        arguments: dict[str, Any] = {"alternate-exchange": "amq.fanout"}
        if kind.startswith("x-"):
            arguments = {"x-delayed-type": "direct"}
        vhost.exchange_definitions.declare(
            name, kind, durable=True, auto_delete=False, internal=False, arguments=arguments
        )
    for name, arguments in (
        ("orders", {"x-max-length": 1000, "x-dead-letter-exchange": "news"}),
        ("audit", {"x-max-priority": 3}),
        ("mail", {"x-history-length": 9}),
    ):
        queue = vhost.declare_queue(
            name,
            durable=True,
            exclusive=False,
            auto_delete=False,
            arguments=arguments,
            connection=None,
        )
        vhost.bindings.bind(queue, "news", "a.#", {"x": 1})
    vhost.bindings.bind(vhost.exchange("wide"), "news", "b.*", {})


def _step(store: Store, queues: list[Queue], rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.5:
        messages = [
            Message(ENVELOPE, b'{"order": %d}' % one + b"x" * rng.choice([0, 9, 900]))
            for one in range(rng.randint(1, 12))
        ]
        expires_ms = rng.choice([0, 0, 4_000_000_000_000])
        store.publish(rng.sample(queues, rng.randint(1, 3)), messages, expires_ms=expires_ms)
    elif kind < 0.8:
        queue = rng.choice(queues)
        run = store.take(queue, rng.randint(1, 9))
        if isinstance(run, Run):
            (store.ack if rng.random() < 0.7 else store.requeue)(queue, run)
    elif kind < 0.96:
        store.sync()
        if kind > 0.9:
            store.upkeep.checkpoint()
    else:
        for _ in range(4):
            store.upkeep.housekeep()


def seed_of(directory: str) -> int:
    found = marker.read(OsFiles(), directory)
    if found is None:
        raise ValueError(directory)
    return found.seed


def forge_catalog(forger: Forger, directory: str) -> None:
    """A row is another one, or under another key, or gone."""
    rng = forger.random
    catalog = LmdbCatalog(f"{directory}/catalog", False)
    try:
        rows = [(table, key, row) for table in TABLES for key, row in catalog.rows(table).items()]
        # Some tables have few rows and much that may be wrong with them.
        table = rng.choice(sorted({one[0] for one in rows}))
        table, key, row = rng.choice([one for one in rows if one[0] == table])
        forger.did += f"{table} {key!r}"
        way = rng.random()
        if way < 0.05:
            change = Change(table, key, None)
        elif way < 0.15:
            other = "x" * 511
            if key.isdigit():
                other = f"{forger.number(int(key), 10**10 - 1)}".zfill(len(key))
            elif table == "index":
                other = f"{key[:20]}-{rng.randrange(9):010}"
                row = {**row, "number": int(other[21:])}
            change = Change(table, other, row)
            forger.did += f" also as {other}"
        else:
            change = Change(table, key, forger.value(row))
        # What msgpack does not take is nothing that could be there.
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            catalog.commit([change])
    finally:
        catalog.close()


def forge_record(forger: Forger, directory: str, folder: str) -> None:
    """Change a record of a segment or an index file, write it twice, or remove it."""
    rng = forger.random
    name = rng.choice(sorted(os.listdir(f"{directory}/{folder}")))
    number = int(name.split(".")[0].split("-")[-1])
    path = f"{directory}/{folder}/{name}"
    with open(path, "rb") as file:
        content = file.read()
    seed = seed_of(directory)
    records = [record for record in scan(content, number, seed) if not isinstance(record, Gap)]
    if not records:
        return
    record = rng.choice(records)
    forger.did += f"{folder}/{name} {Kind(record.kind).name} at {record.offset}:"
    whole = content[record.offset : record.end]
    if rng.random() < 0.1:
        changed = whole * rng.choice((0, 2))
        forger.did += " there twice or gone"
    else:
        changed = _forged_record(forger, record, whole, number, seed)
    with open(path, "wb") as file:
        file.write(content[: record.offset] + changed + content[record.end :])
    _move_end(directory, folder, name, len(changed) - len(whole))


def _forged_record(forger: Forger, one: Record, whole: bytes, number: int, seed: int) -> bytes:
    fields = {
        "kind": one.kind,
        "flags": whole[5],
        "batch": one.batch,
        "number": one.number,
        "segment": number,
    }
    payload = whole[HEADER.size :]
    if forger.random.random() < 0.35:
        field = forger.random.choice(sorted(fields))
        most = {"kind": 255, "flags": 255, "batch": 65_535, "segment": (1 << 32) - 1}
        fields[field] = forger.number(fields[field], most.get(field, (1 << 64) - 1))
        forger.did += f" {field} {fields[field]}"
    else:
        payload = _forged_payload(forger, one.kind, payload)
    lead = _LEAD.pack(MAGIC, *fields.values(), len(payload))
    checksum = crc32c(lead, 0 if one.kind == Kind.SEGMENT else seed)
    return lead + struct.pack(">II", checksum, crc32c(payload, checksum)) + payload


def _forged_payload(forger: Forger, kind: int, payload: bytes) -> bytes:
    rng = forger.random
    if kind == Kind.INDEX and rng.random() < 0.8:
        queue_id, count = BLOCK.unpack_from(payload)
        columns = zstandard.decompress(payload[BLOCK.size :])
        if rng.random() < 0.2:
            count = forger.number(count, (1 << 32) - 1)
        else:
            columns = forger.octets(columns)
        return BLOCK.pack(queue_id, count) + zstandard.compress(columns)
    if kind == Kind.TRANSACTION and len(payload) >= 8 + _OPERATION.size:
        place = 8 + _OPERATION.size * rng.randrange((len(payload) - 8) // _OPERATION.size)
        values = list(_OPERATION.unpack_from(payload, place))
        field = rng.randrange(8)
        most = (1 << 8 * (1, 1, 2, 4, 8, 8, 8, 8)[field]) - 1
        values[field] = forger.number(values[field], most)
        forger.did += f" operation at {place} is {values}"
        return payload[:place] + _OPERATION.pack(*values) + payload[place + _OPERATION.size :]
    return forger.octets(payload)


def _move_end(directory: str, folder: str, name: str, by: int) -> None:
    """Have the catalog know of the new size, so that it is not that which is found out."""
    catalog = LmdbCatalog(f"{directory}/catalog", False)
    table, key = ("ends", name[:10]) if folder == "segments" else ("index", name[:31])
    row = catalog.rows(table).get(key)
    if row and by:
        end = "end" if table == "ends" else "end_bytes"
        catalog.commit([Change(table, key, {**row, end: row[end] + by})])
    catalog.close()


def forge_copy_of_definitions(forger: Forger, directory: str) -> None:
    """The copy of the definitions says something else, and the catalog is lost."""
    found = read_copy(OsFiles(), directory)
    if found is None:
        raise ValueError(directory)
    payload = {"next_queue_id": found.next_queue_id, "tables": found.tables}
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        packed: bytes = msgpack.packb(forger.value(payload))
        head = COPY_HEADER.pack(b"\xc7DEF", 1, found.store_id, len(packed), 0)
        checksum = crc32c(packed, crc32c(head))
        with open(f"{directory}/catalog/definitions", "wb") as file:
            file.write(head[:-4] + struct.pack(">I", checksum) + packed)
    os.remove(f"{directory}/catalog/data.mdb")


def forge_json(forger: Forger, path: str) -> None:
    """A file of JSON says something else, or is something else."""
    with open(path, "rb") as file:
        content = file.read()
    if forger.random.random() < 0.1:
        changed = forger.octets(content)
    else:
        changed = _json(forger.value(json.loads(content)))
        if forger.random.random() < 0.05:
            changed = changed[:-1] + b"," + content[1:]  # every key is there twice
            forger.did += " every key twice"
    with open(path, "wb") as file:
        file.write(changed)


def forge_lines(forger: Forger, path: str) -> None:
    """A line of an export says something else."""
    with open(path, "rb") as file:
        lines = file.read().splitlines(keepends=True)
    place = forger.random.randrange(len(lines))
    forger.did += f"line {place + 1}"
    plain = json.loads(lines[place])
    if plain["type"] == "queue" and forger.random.random() < 0.5:
        # Behind base64 there is msgpack.
        definition = forger.value({"vhost": "/", "name": "orders", "arguments": {}})
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            plain["definition"] = b64encode(msgpack.packb(definition)).decode()
        lines[place] = _json(plain) + b"\n"
    else:
        lines[place] = _json(forger.value(plain)) + b"\n"
    with open(path, "wb") as file:
        file.writelines(lines)


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda one: one.hex()).encode()
