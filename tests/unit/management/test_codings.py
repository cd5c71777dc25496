"""Tests of the content codings that a client accepts: RFC 9110, 12.5.3."""

import pytest
import trio
from starlette.datastructures import Headers

from amqpstore_server.management.answers import Pieces, compressed


def is_packed(*accepted: str) -> bool:
    content = b"x" * (64 << 10)
    answer = Pieces([content], 200, {}, "text/plain")
    headers = Headers(raw=[(b"accept-encoding", one.encode()) for one in accepted])
    return "content-encoding" in trio.run(compressed, answer, headers).headers


@pytest.mark.parametrize(
    "accepted",
    [
        *("gzip", "GZIP", "x-gzip", "*", "gzip;q=1", "gzip;q=1.000", "gzip ; Q=0.001"),
        *("br, gzip;q=0.5", "identity;q=0.5, gzip;q=0.5", "*;q=0, gzip", "gzip; level=9; q=1"),
        *("br;q=abc, gzip", "gzip;", "gzip;q=0.333333"),
    ],
)
def test_gzip_is_accepted(accepted: str) -> None:
    assert is_packed(accepted)


@pytest.mark.parametrize(
    "accepted",
    [
        *("", "identity", "br", "gzip;q=0", "gzip;q=0.", "gzip;q=0.000", "*;q=0", "gzip; q=0.0"),
        *("gzip;q=abc", "gzip;q=", "gzip;q=-1", "gzip;q=2", "gzip;q=1.5", "gzip;q=nan"),
        *("gzip;q=1e-3", "gzip;q=0x1", "gzip;q=.5", "gzip;q=+1", 'gzip;q="1"', "gzip;q=0,5"),
        *("identity;q=1, gzip;q=0.5", "*, gzip;q=0", "gzip;level=9;q=0", "gzipped"),
    ],
)
def test_gzip_is_not_accepted(accepted: str) -> None:
    assert not is_packed(accepted)


def test_each_coding_may_have_a_header_of_its_own() -> None:
    assert is_packed("br", "gzip")
    assert not is_packed("identity", "gzip;q=0")
