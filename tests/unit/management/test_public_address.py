"""Tests of the address at which browsers see the door, and of pages that may send it requests."""

from dataclasses import dataclass

import pytest
from starlette.datastructures import Headers

from amqpstore_server.config.checks import SERVED_PATHS, check_path_prefix, check_public_origins
from amqpstore_server.config.config import Config
from amqpstore_server.management.errors import HttpError
from amqpstore_server.management.guard import check_origin
from amqpstore_server.management.pages.reading import PAGES, STREAMS
from amqpstore_server.management.public_address import PublicAddress, without_prefix
from amqpstore_server.management.resources import ROUTES

SITE = "https://mq.example"


@dataclass
class Sent:
    """A request as it comes in, without TLS: its headers, and the configuration then."""

    headers: dict[str, str]
    config: Config

    @property
    def public(self) -> PublicAddress:
        return PublicAddress(Headers(self.headers), "http", self.config)

    def refusal(self, *allowed: str) -> str:
        try:
            check_origin(Headers(self.headers), self.public, allowed)
        except HttpError as error:
            return error.reason
        return ""


def configured(config: Config, **headers: str) -> Sent:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Sent({"host": "127.0.0.1:15672"} | named, config)


def sent(**headers: str) -> Sent:
    return configured(Config(), **headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:15672"},
        # A proxy that ends TLS and passes Host on, with its port and without.
        {"host": "mq.example", "origin": SITE},
        {"host": "MQ.example:443", "origin": SITE},
        {"host": "mq.example:8443", "origin": f"{SITE}:8443"},
        {"host": "[::1]:8443", "origin": "https://[::1]:8443"},
        # One that does not pass it on.
        {"origin": SITE, "x_forwarded_host": "mq.example"},
        {"origin": SITE, "x_forwarded_host": "mq.example, inner.example"},
        {"origin": SITE, "sec_fetch_site": "same-origin"},
        {"origin": "null", "sec_fetch_site": "same-origin"},
        {"sec_fetch_site": "none"},
    ],
)
def test_a_page_of_this_door_may_send_requests(headers: dict[str, str]) -> None:
    assert sent(**headers).refusal() == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "null"},
        {"origin": ""},
        {"origin": SITE},
        {"origin": f"{SITE}.evil.example", "host": "mq.example"},
        {"origin": "https://evil.example/mq.example", "host": "mq.example"},
        {"origin": f"{SITE}:8443", "host": "mq.example"},
        {"origin": SITE, "host": "mq.example", "sec_fetch_site": "cross-site"},
        # A page on another port or another subdomain gets the cookie along.
        {"origin": SITE, "host": "mq.example", "sec_fetch_site": "same-site"},
        {"origin": "null", "host": ""},
        {"origin": "https://inner.example", "x_forwarded_host": "mq.example, inner.example"},
    ],
)
def test_a_page_of_another_site_may_not(headers: dict[str, str]) -> None:
    assert "another site" in sent(**headers).refusal()


def test_who_may_be_behind_a_proxy_is_told_the_key() -> None:
    refused = sent(origin=SITE)
    assert f"as {SITE}: name that in management_public_origins" in refused.refusal()
    assert configured(Config(management_public_origins=[SITE]), origin=SITE).refusal() == ""
    assert refused.refusal(SITE) == ""  # by CORS
    assert "proxy" not in sent(origin=SITE, sec_fetch_site="cross-site").refusal()


def test_a_cookie_is_for_tls_if_the_browser_uses_it() -> None:
    public_tls = Config(management_public_origins=[SITE])
    for headers, is_secure in (
        ({}, False),
        ({"origin": "http://127.0.0.1:15672", "x_forwarded_proto": "https"}, False),
        ({"origin": SITE}, True),
        ({"x_forwarded_proto": "https"}, True),
        ({"x_forwarded_proto": "HTTPS, http"}, True),
        ({"x_forwarded_proto": "http, https"}, False),
        ({"origin": "null", "x_forwarded_proto": "https"}, True),
    ):
        assert sent(**headers).public.is_secure is is_secure, headers
    assert configured(public_tls, host="mq.example").public.is_secure
    assert not configured(public_tls).public.is_secure
    assert PublicAddress(Headers({"origin": "null"}), "https", Config()).is_secure


def test_the_prefix_is_the_configured_one_or_what_a_proxy_says() -> None:
    assert sent().public.prefix == ""
    for said, prefix in (
        ("/rabbit", "/rabbit"),
        ("/rabbit/", "/rabbit"),
        ("/a/b.c", "/a/b.c"),
        ("//evil.example", ""),
        ("/\\evil.example", ""),
        ("/..", ""),
        ("/a/../b", ""),
        ("https://evil.example", ""),
        ('/"><script>', ""),
        ("/a\r\nset-cookie: x", ""),
        ("/", ""),
    ):
        assert sent(x_forwarded_prefix=said).public.prefix == prefix, said
    config = Config(management_path_prefix="/mine")
    assert configured(config, x_forwarded_prefix="/rabbit").public.prefix == "/mine"


def test_a_path_may_come_with_the_prefix_or_without_it() -> None:
    for path, inside in (
        ("/rabbit/queues/%2F", "/queues/%2F"),
        ("/queues/%2F", "/queues/%2F"),
        ("/rabbit", "/"),
        ("/rabbit/", "/"),
        ("/rabbits", "/rabbits"),
    ):
        assert without_prefix(path, "/rabbit") == inside
    assert without_prefix("/queues", "") == "/queues"


def test_a_prefix_is_no_path_of_the_door() -> None:
    paths = [*(one.path for one in ROUTES), *(one.path for one in PAGES), *STREAMS]
    assert {path.split("/")[1] for path in paths} - {""} <= SERVED_PATHS
    check_path_prefix("")
    check_path_prefix("/rabbit/mq-1")
    for wrong in (
        "rabbit",
        "/rabbit/",
        "/",
        "//rabbit",
        "/a b",
        "/api",
        "/queues/x",
        "/%2F",
        "/..",
    ):
        with pytest.raises(ValueError, match="path"):
            check_path_prefix(wrong)
    check_public_origins([SITE])
    for wrong in ("*", "mq.example", f"{SITE}/"):
        with pytest.raises(ValueError, match="origin"):
            check_public_origins([wrong])
