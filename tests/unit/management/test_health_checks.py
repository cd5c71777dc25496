"""The health checks of the API know what `/health` knows."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from amqpstore_server.loop.alarms import DISK, MEMORY, REPLICAS
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.resources import health
from amqpstore_server.terms.replication_figures import ReplicationFigures


class Asking:
    """A request to a broker in some state; `json` notes what is answered."""

    def __init__(
        self,
        *,
        reasons: tuple[str, ...] = (),
        set_aside: tuple[bool, ...] = (),
        failure: Exception | None = None,
        figures: ReplicationFigures | None = None,
        directory_problem: str = "",
    ) -> None:
        alarms = SimpleNamespace(
            reasons=list(reasons), is_raised=bool(reasons), reason=" and ".join(reasons)
        )
        queues = [SimpleNamespace(is_set_aside=one) for one in set_aside]
        space = SimpleNamespace(problem=directory_problem)
        store = SimpleNamespace(failure=failure, space=space)
        metrics = SimpleNamespace(
            alarms=alarms,
            broker=SimpleNamespace(services=SimpleNamespace(store=store)),
            sampler=SimpleNamespace(all_queues=lambda: queues),
            replication=lambda: figures,
        )
        self.context = SimpleNamespace(
            alarms=alarms, metrics=metrics, node="amqpstore@here", stopping=trio.Event()
        )
        self.vhost: Any = None
        self.path: dict[str, str] = {}
        self.identity: Any = None

    async def json(self, body: dict[str, Any], status: int = 200) -> tuple[int, dict[str, Any]]:
        return status, body


def asked(check: Any, **state: Any) -> tuple[int, dict[str, Any]]:
    return answer_to(Asking(**state), check)


def answer_to(asking: Asking, check: Any) -> tuple[int, dict[str, Any]]:
    answer: tuple[int, dict[str, Any]] = trio.run(check, asking)
    return answer


@pytest.mark.parametrize(
    ("reason", "resource"), [(MEMORY, "memory"), (DISK, "disk"), (REPLICAS, "replicas")]
)
def test_whatever_blocks_publishers_is_an_alarm(reason: str, resource: str) -> None:
    status, body = asked(health.alarms, reasons=(reason,))
    assert status == 503
    assert body["alarms"] == [{"node": "amqpstore@here", "resource": resource}]
    status, body = asked(health.aliveness, reasons=(reason,))
    assert (status, body["reason"]) == (503, f"publishers are blocked: {reason}")


def test_nothing_is_served() -> None:
    assert asked(health.in_service, set_aside=(True, False))[0] == 200
    status, body = asked(health.in_service, set_aside=(True, True), failure=OSError())
    assert status == 503
    assert body["reason"] == "the disk has failed; none of its queues can be served"
    status, body = asked(health.in_service, directory_problem="No such file or directory")
    assert (status, body["reason"]) == (503, "the data directory cannot be reached")


@pytest.mark.parametrize(("in_sync", "min_in_sync", "status"), [(3, 2, 200), (2, 2, 503)])
def test_a_leader_that_its_group_cannot_do_without(
    in_sync: int, min_in_sync: int, status: int
) -> None:
    figures = ReplicationFigures(7, in_sync, 0, 0, 0, 0, min_in_sync)
    found, body = asked(health.quorum, figures=figures)
    assert found == status
    assert body.get("reason") != "single node cluster"


def led(**path: str) -> tuple[int, dict[str, Any]]:
    """Ask whether quorum queues have a leader: `a` and the classic `b` have failed, `c` has not."""
    quorum = {"x-queue-type": "quorum"}
    queues = {
        name: SimpleNamespace(name=name, arguments=arguments, is_set_aside=is_set_aside)
        for name, arguments, is_set_aside in (
            ("a", quorum, True),
            ("b", {}, True),
            ("c", quorum, False),
        )
    }
    vhosts = {name: SimpleNamespace(name=name, queues=queues) for name in ("v", "hidden")}
    asking = Asking()
    asking.path = path
    asking.vhost = vhosts["v"]
    asking.identity = SimpleNamespace(may_see=lambda name: name == "v")
    asking.context.broker = SimpleNamespace(vhosts=vhosts)
    return answer_to(asking, health.quorum_queues)


def test_a_quorum_queue_that_is_not_served_has_no_leader() -> None:
    for path in ({}, {"vhost": "v"}, {"pattern": "^a"}):
        status, body = led(**path)
        assert status == 503
        assert body["queues"] == [{"name": "a", "virtual_host": "v", "type": "quorum"}]
    assert led(pattern="[bc]") == (200, {"status": "ok"})
    with pytest.raises(HttpError):
        led(pattern="(")


def test_a_broker_without_virtual_hosts_has_no_data() -> None:
    asking = Asking()
    asking.context.broker = SimpleNamespace(vhosts={})
    assert answer_to(asking, health.metadata)[0] == 503
