"""Reports of starts after a crash, and of drills: those in the data directory (see `reports`)."""

from __future__ import annotations

from functools import partial

import trio

from amqpstore_server.management.answers import Answer
from amqpstore_server.management.call import Call
from amqpstore_server.management.errors import bad_request, not_found
from amqpstore_server.management.needs import Needs
from amqpstore_server.management.routes import ApiRoute
from amqpstore_server.reports.reports import ReportError, list_reports, read_report


async def get_reports(call: Call) -> Answer:
    """Return all reports, without what is in them."""
    directory = call.context.broker.services.store.directory
    return await call.json(await trio.to_thread.run_sync(list_reports, directory))


async def get_report(call: Call) -> Answer:
    """Return one report."""
    directory, name = call.context.broker.services.store.directory, call.path["name"]
    try:
        found = await trio.to_thread.run_sync(partial(read_report, directory, name))
    except ReportError as error:
        raise bad_request(f"{name}: {error}") from None
    if found is None:
        raise not_found(f"no report '{name}'")
    return await call.json(found)


ROUTES = (
    ApiRoute(
        "GET",
        "/api/store/reports",
        get_reports,
        "Reports of starts after a crash, and of drills",
        Needs.MONITORING,
        is_list=True,
    ),
    ApiRoute("GET", "/api/store/reports/{name}", get_report, "One of them", Needs.MONITORING),
)
