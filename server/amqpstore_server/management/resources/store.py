"""The store: segments, checkpoint, what recovery found, checks, and branches in doubt.

RabbitMQ's API has nothing of this.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import msgspec
import trio

from amqpstore import Store
from amqpstore_server.broker.channels.branches import Xid
from amqpstore_server.broker.monitoring.audit import audit
from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import DOOR, Call
from amqpstore_server.management.errors import bad_request
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute

_MAX_DAMAGE = 100


class BranchDecision(msgspec.Struct, forbid_unknown_fields=True):
    """The decision on a prepared branch."""

    vhost: str
    xid: str
    decision: Literal["commit", "rollback"]


async def get_store(call: Call) -> Answer:
    """Return the figures of the store, and what needs an operator."""
    broker = call.context.broker
    store = broker.services.store
    figures = store.statistics.figures()
    log = figures.log
    queues = [
        queue
        for vhost in broker.vhosts.values()
        for queue in vhost.queues.values()
        if queue.is_listed
    ]
    on_disk = sum(
        bool(queue.ready_count and not any(one.memory_bytes for one in queue.priorities))
        for queue in queues
    )
    return await call.json(
        {
            "path": store.directory,
            "segment_count": log.segments,
            "segment_bytes": log.segment_bytes,
            "live_bytes": log.live_bytes,
            "garbage_bytes": log.garbage_bytes,
            "log_tail_bytes": log.tail_bytes,
            "checkpoint_age_s": log.checkpoint_age_s,
            "memory_bytes": figures.memory_bytes,
            "memory_budget_bytes": figures.memory_budget_bytes,
            "free_bytes": figures.free_bytes,
            "least_free_bytes": figures.least_free_bytes,
            "queues_in_memory": len(queues) - on_disk,
            "queues_on_disk": on_disk,
            "work": log.work,
            "segments": [segment._asdict() for segment in store.statistics.segments()],
            "recovery": _recovery(store, figures.opening_s),
            "check": call.context.checks.row(),
            "quarantine": log.quarantined_segments,
            "prepared": _in_doubt(call),
        }
    )


def _recovery(store: Store, opening_s: float) -> dict[str, Any]:
    report = store.recovery_report
    return {
        "opening_s": opening_s,
        "scanned_bytes": report.scanned_bytes,
        "kept": sum(report.kept.values()),
        "redelivered": sum(report.redelivered.values()),
        "torn_bytes": report.torn_bytes,
        "rolled_back": report.rolled_back,
        "lost": report.lost_count,
        "orphaned": len(report.orphaned),
        "shortfall": report.shortfall.text if report.shortfall else "",
        "passed_over": report.passed_over,
        "damage": [
            f"{path} at {offset}, {size} bytes: {reason}"
            for path, offset, size, reason in report.damage[:_MAX_DAMAGE]
        ],
        "unknown_files": report.unknown_files[:_MAX_DAMAGE],
    }


def _in_doubt(call: Call) -> list[dict[str, Any]]:
    return [
        {"vhost": vhost.name, **one._asdict(), "xid": str(one.xid)}
        for vhost in call.context.broker.vhosts.values()
        if call.identity.may_see(vhost.name)
        for one in vhost.branches.in_doubt()
    ]


async def get_latencies(call: Call) -> Answer:
    """Return how long syncs, confirms and deliveries have taken in the last seconds."""
    return await call.json(call.context.metrics.sampler.latencies())


async def start_check(call: Call) -> Answer:
    """Check the running store; the answer comes when it is done."""
    await call.context.checks.run(call.context.broker.services.store)
    return await call.json(call.context.checks.row())


async def decide_branch(call: Call) -> Answer:
    """Commit a prepared branch or roll it back, in the place of its transaction manager."""
    asked = await call.body(BranchDecision)
    vhost = call.context.broker.vhost(asked.vhost)
    try:
        xid = Xid.parse(asked.xid)
    except ValueError:
        raise bad_request(f"'{asked.xid}' is not the name of a branch") from None
    access = call.identity.access(asked.vhost)
    durable = trio.Event()
    if asked.decision == "commit":
        steps = vhost.branches.committing(
            access, xid, lambda _status: durable.set(), one_phase=False
        )
    else:
        steps = vhost.branches.rolling_back(access, xid, lambda _status: durable.set())
    with contextlib.closing(steps):
        for _ in steps:
            await trio.lowlevel.checkpoint()
    call.context.wake()
    await durable.wait()
    audit(
        f"branch decided: {asked.decision}",
        by=call.identity.user,
        door=DOOR,
        vhost=asked.vhost,
        xid=asked.xid,
    )
    return await call.json({"decision": asked.decision})


ROUTES = (
    ApiRoute("GET", "/api/store", get_store, "The store", Needs.MONITORING),
    ApiRoute("GET", "/api/latencies", get_latencies, "How long clients wait", Needs.MONITORING),
    ApiRoute(
        "POST",
        "/api/store/check",
        start_check,
        "Check the store",
        Needs.ADMINISTRATOR,
        refusals=(409,),
    ),
    ApiRoute(
        "POST",
        "/api/store/prepared",
        decide_branch,
        "Decide a prepared branch",
        Needs.ADMINISTRATOR,
        body=BranchDecision,
    ),
)
