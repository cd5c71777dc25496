"""One request to a route: who asks for what, and how it is answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import trio
from starlette.requests import Request

from amqpstore_server.administration.work import Work
from amqpstore_server.broker.audit import By
from amqpstore_server.management.answers import Answer, json_answer
from amqpstore_server.management.bodies import decoded, read_body
from amqpstore_server.management.errors import HttpError, not_authorised, not_found
from amqpstore_server.management.listing import ListQuery, RowKind, listed, shown_row
from amqpstore_server.management.routes import ApiRoute, Needs
from amqpstore_server.statistics.ranges import SampleRanges, ranges_of

if TYPE_CHECKING:
    from amqpstore_server.broker.vhost import VirtualHost
    from amqpstore_server.management.context import ManagementContext
    from amqpstore_server.management.login import Identity

DOOR = "HTTP API"
"""The name of this door in the audit log."""

PASSED_ON = "is_passed_on"
"""In the state of a connection: whether it comes through a follower."""

T = TypeVar("T")
BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")


class Call:
    """A request whose login was checked. `path` has the decoded parameters of the path, `query`
    those behind it.
    """

    def __init__(
        self,
        context: ManagementContext,
        request: Request,
        identity: Identity,
        path: Mapping[str, str],
        large_bodies: trio.Semaphore,
    ) -> None:
        self.context = context
        self.request = request
        self.identity = identity
        self.path = path
        self.query = request.query_params
        self._large_bodies = large_bodies

    @property
    def by(self) -> By:
        """Who asks, for the audit log."""
        return By(self.identity.user, DOOR)

    @property
    def vhost(self) -> VirtualHost:
        """The virtual host in the path. Raises: NotFoundError."""
        return self.context.broker.vhost(self.path["vhost"])

    @property
    def is_passed_on(self) -> bool:
        """Whether a follower has passed the request on to this broker, which leads."""
        return bool((self.request.scope.get("state") or {}).get(PASSED_ON))

    @property
    def ranges(self) -> SampleRanges:
        """The samples that the parameters ask for. Raises: HttpError."""
        try:
            return ranges_of(self.query)
        except ValueError as error:
            raise HttpError(400, "invalid_range_parameters", str(error)) from None

    def is_true(self, name: str) -> bool:
        """Tell whether a parameter is `true`."""
        return self.query.get(name, "").lower() == "true"

    def check(self, route: ApiRoute) -> None:
        """Make sure that the user may call a route. Raises: HttpError."""
        identity = self.identity
        match route.needs:
            case Needs.ADMINISTRATOR if not identity.is_administrator:
                raise not_authorised("Not administrator user")
            case Needs.MONITORING if not identity.is_monitor:
                raise not_authorised("Not monitor user")
            case Needs.POLICYMAKER if not identity.is_policymaker:
                raise not_authorised("Not policymaker user")
        if "vhost" not in self.path or route.needs is Needs.ADMINISTRATOR:
            return
        name = self.path["vhost"]
        if name not in self.context.broker.vhosts:
            raise not_found(f"no vhost '{name}'")
        only_looks = route.method == "GET" and route.needs is not Needs.POLICYMAKER
        if identity.is_administrator or identity.may_open(name):
            return
        if not (only_looks and identity.may_see(name)):
            raise not_authorised("User not authorised to access virtual host")

    async def body(self, kind: type[BodyT]) -> BodyT:
        """Return the body, an object of JSON, as a value of a type. Raises: HttpError."""
        max_bytes = self.context.config().management_max_body_bytes
        content = await read_body(self.request, max_bytes, self._large_bodies)
        return await decoded(content, kind)

    async def carry_out(self, work: Work[ResultT]) -> ResultT:
        """Carry out the work of an operator, in steps."""
        return await self.context.carry_out(work)

    async def json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return an answer with a value as JSON."""
        return await json_answer(value, status, headers)

    async def listed(
        self,
        items: Sequence[T],
        kind: RowKind[T],
        default_sort: Sequence[str] = ("vhost", "name"),
        other_name: Callable[[T], str] = lambda _item: "",
    ) -> Answer:
        """Return an answer with the rows that the parameters ask for: see `listing`."""
        query = ListQuery.of(self.query)
        rows = await listed(query, items, kind, default_sort, other_name)
        return await json_answer(rows)

    async def row(self, item: T, kind: RowKind[T]) -> Answer:
        """Return an answer with one row, of which `columns` may ask for a part."""
        return await json_answer(shown_row(ListQuery.of(self.query), kind, item))
