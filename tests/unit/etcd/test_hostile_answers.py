"""Answers that etcd's gateway never gives: a proxy's error page, another service, a broken disk.

Each is an error that says what is wrong, and the next endpoint is asked.
"""

import errno
import gzip
import logging
import time
from base64 import b64encode
from collections.abc import Callable, Generator
from contextlib import ExitStack
from itertools import count
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from amqpstore_server.cluster.keys import EtcdTransaction, Put
from amqpstore_server.etcd import client as etcd_client
from amqpstore_server.etcd import endpoint
from amqpstore_server.etcd.client import TIMEOUT_S, EtcdClient
from amqpstore_server.etcd.endpoint import MAX_ANSWER_BYTES, EndpointLines
from amqpstore_server.etcd.errors import (
    CompactedError,
    EndpointError,
    EtcdUnavailableError,
    NotFitError,
)
from amqpstore_server.etcd.identity import EtcdIdentity
from amqpstore_server.etcd.settings import EtcdSettings
from tests.unit.etcd.canned_server import CannedServer, http
from tests.waiting import wait_until

GIVEN_UP_S = 0.3
PATIENT_S = 60.0
PREFIX = "/amqpstore/c/g/"
HEADER = b'"header":{"cluster_id":"18446744073709551615","member_id":"1","revision":"7"}'
GOOD = http(b"{" + HEADER + b"}")
KEY = b'"key":"L2FtcXBzdG9yZS9jL2cvc3RhdGU="'
PUT = EtcdTransaction((), (Put("state", {"term": 1, "request": "r"}),), (), "r")

Serve = Callable[..., CannedServer]


def row(value: bytes, key: bytes = KEY) -> bytes:
    revisions = b'"create_revision":"3","mod_revision":"4"'
    return http(b"{" + HEADER + b',"kvs":[{' + key + b"," + revisions + b"," + value + b"}]}")


@pytest.fixture
def serve() -> Generator[Serve]:
    with ExitStack() as stack:
        yield lambda *answers, **options: stack.enter_context(CannedServer(*answers, **options))


def client(
    *servers: CannedServer,
    known: EtcdIdentity | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> EtcdClient:
    """Make a client that gives up at once only on servers that would never answer."""
    settings = EtcdSettings(tuple(one.url for one in servers))
    made = EtcdClient(settings, PREFIX, known, timeout_s=PATIENT_S, clock=clock)
    for server, asked in zip(servers, made._endpoints, strict=True):
        if server.is_given_up:
            asked._timeout_s = GIVEN_UP_S
    return made


def serve_case(serve: Serve, case: str) -> CannedServer:
    answer, reason = BROKEN[case]
    return serve(answer, is_given_up=reason.startswith("no answer within"))


BROKEN = {
    "not JSON": (http(b"<html>It works!</html>"), "JSON is malformed"),
    "an empty body": (http(b""), "truncated"),
    "another shape": (http(b"[]"), "Expected `object`, got `array`"),
    "without a header": (http(b"{}"), "missing required field `header`"),
    "a cluster id that is not a number": (
        http(b'{"header":{"cluster_id":"x","revision":"1"}}'),
        "$.header.cluster_id",
    ),
    "a row without its revision": (
        http(b"{" + HEADER + b',"kvs":[{' + KEY + b"}]}"),
        "missing required field `mod_revision` - at `$.kvs[0]`",
    ),
    "a key that is not base64": (row(b'"value":""', b'"key":"%%%"'), "base64"),
    "a value that is not base64": (row(b'"value":"e30"'), "base64"),
    "a value that is not JSON": (row(b'"value":"bm8="'), "state' has the value 'no': "),
    "a value that is no object": (
        row(b'"value":"W10="'),
        "has the value '[]': Expected `object`",
    ),
    "no value": (row(b'"lease":"7"'), "state' has the value '': "),
    "a value without a field": (row(b'"value":"e30="'), "missing required field `term`"),
    "a key of somebody else": (row(b'"value":"e30="', b'"key":"L2EvYg=="'), "was not asked for"),
    "nested deeply": (http(b'{"header":' + b"[" * 100_000), "the answer is"),
    "bytes that are not text": (http(b'{"header":"\xff\xfe"}'), "the answer is"),
    "compressed": (http(gzip.compress(b"{}"), headers=["Content-Encoding: gzip"]), "malformed"),
    "an error with a text": (
        http(b'{"error":"etcdserver: no leader","code":14}', "503 Service Unavailable"),
        "HTTP 503: etcdserver: no leader",
    ),
    "an error of a newer gateway": (
        http(b'{"code":14,"message":"etcdserver: no leader","details":[]}', "503 Unavailable"),
        "HTTP 503: etcdserver: no leader",
    ),
    "an error page": (http(b"<h1>Bad Gateway</h1>", "502 Bad Gateway"), "HTTP 502: '<h1>Bad"),
    "elsewhere": (http(b"", "302 Found", ["Location: http://127.0.0.1:1/"]), "HTTP 302"),
    "a huge body": (http(b" " * (MAX_ANSWER_BYTES + 1)), "more than 1048576 bytes"),
    "no HTTP": (b"SSH-2.0-\x1b[2JOpenSSH_9.2\r\n", r"BadStatusLine: SSH-2.0-\x1b[2J"),
    "a length that is not a number": (
        b"HTTP/1.1 200 OK\r\nContent-Length: -x\r\n\r\n{}",
        "no answer within",
    ),
    "a chunk of no size": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "IncompleteRead",
    ),
    "half of it": (http(b"{" + HEADER + b"}")[:-9], "no answer within 0.3 s"),
    "nothing": (b"", "no answer within 0.3 s"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_says_what_is_wrong_and_the_next_endpoint_is_asked(
    serve: Serve, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, reason = BROKEN[case]
    broken, good = serve_case(serve, case), serve(GOOD)
    with client(broken) as lonely, pytest.raises(EtcdUnavailableError) as failed:
        lonely.read()
    assert str(failed.value).startswith(f"etcd: the only endpoint failed: {broken.url}: ")
    assert reason in str(failed.value)
    assert len(str(failed.value)) < 600
    with client(broken, good) as both, caplog.at_level(logging.INFO):
        caplog.clear()
        assert both.read().revision == 7
        assert both.read().revision == 7
    # The endpoint that failed is not asked first again. (One that was given up may read late.)
    wait_until(lambda: len(broken.requests) >= 2)
    assert len(broken.requests) == 2
    assert [one.message for one in caplog.records] == ["etcd fails"]


def test_an_answer_is_waited_for_for_a_limited_time(serve: Serve) -> None:
    reason = f"no answer within {TIMEOUT_S:g} s"
    silent = serve(b"")
    with (
        EtcdClient(EtcdSettings((silent.url,)), PREFIX) as one,
        pytest.raises(EtcdUnavailableError, match=reason),
    ):
        one.read()


def test_an_answer_that_ends_too_early_is_an_error(serve: Serve) -> None:
    broken = serve(http(b"{" + HEADER + b"}")[:-9], then_closes=True)
    with client(broken) as one, pytest.raises(EtcdUnavailableError, match="IncompleteRead"):
        one.read()


def test_an_endpoint_that_listens_to_nobody_is_passed_over(serve: Serve) -> None:
    with CannedServer(GOOD) as gone:
        pass
    with client(gone, serve(GOOD)) as both:
        assert both.read().revision == 7
    with client(gone) as lonely, pytest.raises(EtcdUnavailableError, match="Connection refused"):
        lonely.read()


def test_all_endpoints_are_named_when_all_fail(serve: Serve) -> None:
    one, other = serve(http(b"no")), serve(b"", is_given_up=True)
    with client(one, other) as both, pytest.raises(EtcdUnavailableError) as failed:
        both.read()
    assert "all 2 endpoints failed" in str(failed.value)
    assert one.url in str(failed.value)
    assert other.url in str(failed.value)


@pytest.mark.parametrize("case", [case for case in BROKEN if b"kvs" not in BROKEN[case][0]])
def test_a_transaction_without_a_clear_answer_is_sent_once(serve: Serve, case: str) -> None:
    _, reason = BROKEN[case]
    broken, good = serve_case(serve, case), serve(GOOD)
    with client(broken, good) as both:
        attempted = both.attempt(PUT)
    assert attempted.outcome == "unknown"
    assert reason in attempted.reason
    wait_until(lambda: bool(broken.requests))
    assert (len(broken.requests), len(good.requests)) == (1, 0)


def test_a_transaction_that_nobody_received_goes_to_the_next_endpoint(serve: Serve) -> None:
    with CannedServer(GOOD) as gone:
        pass
    good = serve(http(b"{" + HEADER + b',"succeeded":true}'))
    with client(gone, good) as both:
        assert both.attempt(PUT) == ("done", 7, "")
    assert len(good.requests) == 1


def test_a_transaction_that_nobody_received_has_no_certain_outcome(serve: Serve) -> None:
    with CannedServer(GOOD) as gone:
        pass
    with client(gone) as lonely:
        assert lonely.attempt(PUT).outcome == "unknown"


def test_a_transaction_under_a_lease_that_is_gone_is_refused(serve: Serve) -> None:
    said = b'{"error":"etcdserver: requested lease not found","code":5}'
    with client(serve(http(said, "404 Not Found"))) as one:
        assert one.attempt(PUT).outcome == "refused"


def test_a_path_that_is_not_there_is_no_lease_that_is_gone(serve: Serve) -> None:
    """An older etcd, or something else: it has no `/v3/`."""
    with client(serve(http(b"Not Found\n", "404 Not Found"))) as one:
        assert one.attempt(PUT).outcome == "unknown"
        with pytest.raises(EtcdUnavailableError, match="HTTP 404: 'Not Found"):
            one.revoke(7)


# Who it is.


def test_another_cluster_is_not_used(serve: Serve) -> None:
    known = EtcdIdentity(cluster=5)
    with (
        client(serve(GOOD), known=known) as one,
        pytest.raises(
            EtcdUnavailableError, match=r"the etcd cluster ffffffffffffffff, and .* to 5:"
        ),
    ):
        one.read()


def test_the_next_endpoint_may_be_the_right_cluster(serve: Serve) -> None:
    other = http(b'{"header":{"cluster_id":"5","revision":"9"}}')
    with client(serve(GOOD), serve(other), known=EtcdIdentity(cluster=5)) as both:
        assert both.read().revision == 9


def revision(number: int) -> bytes:
    return http(msgspec.json.encode({"header": {"cluster_id": "5", "revision": str(number)}}))


def test_revisions_that_go_back_end_all_agreement(serve: Serve) -> None:
    """A late answer does not: each is compared with what was known when it was asked for."""
    server = serve(revision(9), revision(8), revision(10))
    with client(server) as one:
        assert one.read().revision == 9
        with pytest.raises(EtcdUnavailableError, match="at revision 8 and was at 9 before"):
            one.read()
        asked = len(server.requests)
        with pytest.raises(Exception, match="was it restored from a backup"):
            one.read()
        assert one.attempt(PUT).outcome == "unknown"
        with pytest.raises(Exception, match="was it restored from a backup"):
            one.keep_alive(7)
        with pytest.raises(Exception, match="was it restored from a backup"):
            one.watch(3)
        assert len(server.requests) == asked


def test_the_next_process_knows_the_revision_too(serve: Serve) -> None:
    with client(serve(revision(9))) as one:
        one.read()
        known = one.identity
    assert known == EtcdIdentity(5, 9)
    with (
        client(serve(revision(8)), known=known) as later,
        pytest.raises(EtcdUnavailableError, match="at revision 8 and was at 9 before"),
    ):
        later.read()


def test_an_answer_to_a_keep_alive_may_be_behind(serve: Serve) -> None:
    """A member of etcd answers it with its own revision, and may be slow to learn of the last."""
    late = b'{"result":{"header":{"cluster_id":"5","revision":"8"},"ID":"7","TTL":"3"}}\n'
    with client(serve(revision(9), http(late), revision(9))) as one:
        one.read()
        assert one.keep_alive(7).is_alive
        assert one.read().revision == 9


# Keep-alives.


def test_a_lease_is_renewed_only_while_the_caller_is_fit(serve: Serve) -> None:
    server = serve(GOOD)
    with client(server) as one, pytest.raises(NotFitError):
        one.keep_alive(7, lambda: False)
    assert server.requests == []


def test_a_renewal_counts_from_when_it_was_sent(serve: Serve) -> None:
    """The time of the answer does not count, nor that of the request to the failed endpoint."""
    times = iter([10.0, 11.0, 99.0])
    kept = b'{"result":{"header":{"cluster_id":"5","revision":"8"},"ID":"7","TTL":"3"}}\n'
    silent = serve(b"", is_given_up=True)
    with client(silent, serve(http(kept)), clock=lambda: next(times)) as both:
        assert both.keep_alive(7) == (True, 11.0)


def test_a_caller_that_is_fit_no_longer_does_not_ask_the_next_endpoint(serve: Serve) -> None:
    fit = iter([True, False])
    other = serve(GOOD)
    silent = serve(b"", is_given_up=True)
    with client(silent, other) as both, pytest.raises(NotFitError):
        both.keep_alive(7, lambda: next(fit))
    assert other.requests == []


def test_a_longer_lease_than_was_asked_for_is_an_error(serve: Serve) -> None:
    granted = http(b"{" + HEADER + b',"ID":"77","TTL":"8"}')
    with (
        client(serve(granted)) as one,
        pytest.raises(EtcdUnavailableError, match="3 s was asked for, and one of 8 s was granted"),
    ):
        one.grant(3.0)


# Watches.


def stream(*lines: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in lines)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


def line(content: bytes) -> bytes:
    return b'{"result":{"header":{"cluster_id":"5","revision":"9"}' + content + b"}}\n"


CHANGED = line(b',"events":[{"kv":{"key":"YQ=="}}]')
CREATED = line(b',"created":true')


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b"no\n"], "truncated"),
        ([b"[]\n"], "got `array`"),
        ([b'{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}\n'], "no leader"),
        ([b"{}\n"], "the watch ended"),
        ([line(b',"events":[{}]')], "missing required field `kv`"),
        ([line(b',"canceled":true,"cancel_reason":"because"')], "the watch ended: .*because"),
        ([b" " * (MAX_ANSWER_BYTES + 1)], "more than 1048576 bytes"),
    ],
)
def test_a_broken_watch_says_what_is_wrong(serve: Serve, lines: list[bytes], reason: str) -> None:
    with client(serve(stream(CREATED, *lines), then_closes=True)) as one:
        watch = one.watch(3)
        with pytest.raises(EndpointError, match=reason):
            list(watch.changes())
        watch.close()


def test_a_watch_of_another_cluster_is_not_used(serve: Serve) -> None:
    with client(serve(stream(CREATED)), known=EtcdIdentity(cluster=6)) as one:
        watch = one.watch(3)
        with pytest.raises(EndpointError, match="the etcd cluster 5, and"):
            list(watch.changes())
        watch.close()


def test_lines_of_a_watch_may_come_in_pieces(serve: Serve) -> None:
    pieces = CREATED + CHANGED + line(b"")
    answer = stream(*(pieces[n : n + 1] for n in range(len(pieces))), b"")
    with client(serve(answer)) as one:
        watch = one.watch(3)
        assert list(watch.changes()) == [9]
        watch.close()


def test_a_watch_that_is_silent_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etcd_client, "SILENCE_S", GIVEN_UP_S)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with client(serve(head)) as one:
        watch = one.watch(3)
        assert list(watch.changes()) == []
        watch.close()


def test_a_watch_of_what_was_compacted_says_so(serve: Serve) -> None:
    gone = line(b',"canceled":true,"compact_revision":"8"')
    with client(serve(stream(CREATED, gone))) as one:
        watch = one.watch(3)
        with pytest.raises(CompactedError, match="compacted to 8"):
            list(watch.changes())
        watch.close()


def test_a_watch_goes_to_the_next_endpoint(serve: Serve) -> None:
    broken = serve(http(b'{"error":"no","code":14}', "503 Service Unavailable"))
    with client(broken, serve(stream(CREATED, CHANGED, b""))) as both:
        watch = both.watch(3)
        assert list(watch.changes()) == [9]
        watch.close()


def test_a_watch_leaves_out_who_shows_that_it_runs(serve: Serve) -> None:
    """Every member does so all the time."""
    alive = line(b',"events":[{"kv":{"key":"%s"}}]' % b64encode(f"{PREFIX}alive/A".encode()))
    with client(serve(stream(CREATED, alive, b""))) as one:
        watch = one.watch(3)
        assert list(watch.changes()) == []
        watch.close()


def test_an_answer_that_comes_byte_by_byte_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and the last one never would."""
    slow = serve(http(b" " * 10_000), is_slow=True)
    times = count()  # a second passes with each piece that was read
    monkeypatch.setattr(endpoint, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with client(slow) as one, pytest.raises(EtcdUnavailableError, match=r"no end within 60 s"):
        one.read()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("group", {"min_in_sync": 2}),
        ("members/A", {"sync": "yes"}),
        ("state", {"term": "1", "leader": "A"}),
        ("leader", {"member": "A"}),
        ("in_sync", {"members": "A"}),
        ("handover", {"to": 7, "term": 1}),
    ],
)
def test_a_value_that_somebody_has_put_by_hand_is_named(
    serve: Serve, key: str, value: dict[str, object]
) -> None:
    coded = b64encode(msgspec.json.encode(value))
    name = b64encode(f"{PREFIX}{key}".encode())
    with (
        client(serve(row(b'"value":"%s"' % coded, b'"key":"%s"' % name))) as one,
        pytest.raises(EtcdUnavailableError, match=f"the key '{PREFIX}{key}' has the value"),
    ):
        one.read()


def test_a_stream_that_has_ended_may_be_stopped_as_well() -> None:
    """The thread that ends the process stops the stream, and has another error to report."""

    class Ended:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def shutdown(self) -> None:
            raise self._error

    for error in (OSError(errno.EBADF, "closed"), RuntimeError("released to the pool")):
        ended: Any = Ended(error)
        EndpointLines("http://127.0.0.1:1", ended).stop()
