"""The configuration: every key, declared once.

To add a key, add a field to `Config`: its type and limits, what it means, and its default
(`config_keys.key` has the details). From that come the key of the TOML file, the environment
variable `AMQPSTORE_` and its name in upper case, the option of `amqpstore serve` if it has a
`flag`, and the checks with their error messages. Then write the table of server/CONFIGURATION.md
with `python -m tests.configuration_page`: a test compares the two. A rule about several keys goes
into `conflicts`.

A key with `live=True` is changed by SIGHUP: name it in the part of `reloading.reloadables_of`
that applies it to the running broker (a test looks for it there). All others need a restart, which
the log says when such a key has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from amqpstore_server.config.checks import (
    A_PATH,
    A_PATH_OR_EMPTY,
    check_addresses,
    check_key_set,
    check_origins,
    check_path_prefix,
    check_provenance_bytes,
    check_public_origins,
)
from amqpstore_server.config.cluster import ClusterConfig, cluster_conflicts
from amqpstore_server.config.keys import file_key, key, keys_of

DEFAULT_MANAGEMENT = ("127.0.0.1:15672",)
"""The default of `management_listen`."""


class Config(ClusterConfig, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """All configuration settings. Sizes are in bytes, times in seconds."""

    data: Annotated[
        str,
        key(
            "data directory",
            flag="--data",
            metavar="DIR",
            expected="the path of a directory",
            pattern=A_PATH,
        ),
    ] = "data"
    listen: Annotated[
        list[str],
        key(
            "addresses for AMQP; port 0 lets the system choose, `[::]` is all "
            "addresses, of IPv4 too",
            flag="--listen",
            metavar="HOST:PORT",
            expected="a list of HOST:PORT or [IPV6]:PORT, at least one, ports from 0 to 65535",
            min_length=1,
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=lambda: ["127.0.0.1:5672"])
    tls_listen: Annotated[
        list[str],
        key(
            "addresses for AMQP over TLS, as in `listen`",
            flag="--tls-listen",
            metavar="HOST:PORT",
            expected="a list of HOST:PORT or [IPV6]:PORT, ports from 0 to 65535",
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=list)
    proxy_protocol: Annotated[
        list[str],
        key(
            "those addresses of `listen` and `tls_listen` that only proxies can reach: each "
            "connection begins with a header of the PROXY protocol, version 1 or 2",
            expected="a list of addresses that are in listen or tls_listen, without cluster_name",
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=list)
    tls_certificate: Annotated[
        str,
        file_key(
            "a PEM file: the server's certificate, and those between it and its CA; read again on "
            "SIGHUP, as all files of TLS",
            live=True,
        ),
    ] = ""
    tls_key: Annotated[
        str,
        file_key(
            "a PEM file: its private key, without a password; empty means the same file",
            live=True,
        ),
    ] = ""
    tls_certificates: Annotated[
        str,
        key(
            "a directory of further certificates (`*.crt`), each with its key (`*.key`), for "
            "clients that ask for one of their names (SNI)",
            expected="the path of a directory, or empty",
            pattern=A_PATH_OR_EMPTY,
            live=True,
        ),
    ] = ""
    tls_ca: Annotated[
        str,
        file_key(
            "a PEM file: the CAs whose client certificates are accepted",
            live=True,
        ),
    ] = ""
    tls_crl: Annotated[
        str,
        file_key(
            "a PEM file: lists of revoked certificates (CRLs), one of each CA; with it, a client's "
            "certificate is accepted only if it and all CAs above it are in none of them",
            live=True,
        ),
    ] = ""
    tls_client: Annotated[
        Literal["none", "optional", "required"],
        key("whether clients are asked for a certificate, and must have one", live=True),
    ] = "none"
    tls_min_version: Annotated[
        Literal["1.2", "1.3"], key("the oldest version of TLS that is accepted", live=True)
    ] = "1.2"
    tls_login_from: Annotated[
        Literal["distinguished_name", "common_name", "san_dns", "san_email", "san_uri", "san_ip"],
        key(
            "where the user's name is in a client's certificate, for the mechanism EXTERNAL; of "
            "several alternative names (SAN) of a type it is the first",
            live=True,
        ),
    ] = "distinguished_name"
    mechanisms: Annotated[
        list[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"]],
        key(
            "how clients may log in; EXTERNAL is offered to those with a verified certificate "
            "of a user",
            expected='a list of "PLAIN", "AMQPLAIN" and "EXTERNAL", at least one',
            min_length=1,
            live=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["PLAIN", "AMQPLAIN", "EXTERNAL"])
    plain_without_tls: Annotated[
        Literal["warn", "refuse", "allow"],
        key("what happens when a password comes from another machine without TLS", live=True),
    ] = "warn"
    oauth_resource_server_id: Annotated[
        str,
        key(
            "the name of this broker in tokens (`aud`), and in front of their scopes; with it, "
            "clients may send a token (JWT) as their password",
            max_length=255,
            live=True,
        ),
    ] = ""
    oauth_scope_prefix: Annotated[
        str,
        key(
            "what is in front of this broker's scopes instead of its name and a dot",
            max_length=255,
            live=True,
        ),
    ] = ""
    oauth_issuer: Annotated[
        str, key("the issuer that tokens must name (`iss`); empty means any", live=True)
    ] = ""
    oauth_keys: Annotated[
        str,
        key(
            "a directory with the public keys of tokens: `KEY-ID.pem`",
            expected="the path of a directory, or empty",
            pattern=A_PATH_OR_EMPTY,
            live=True,
        ),
    ] = ""
    oauth_jwks: Annotated[
        str,
        key(
            "the keys of tokens as a JSON Web Key Set: an `https` address, fetched again when a "
            "token names an unknown key, or a file",
            expected="an https URL, the path of a file, or empty",
            check=check_key_set,
            live=True,
        ),
    ] = ""
    oauth_jwks_ca: Annotated[
        str,
        file_key(
            "a PEM file: the CA of that address, if it is not one that the system trusts",
            live=True,
        ),
    ] = ""
    oauth_algorithms: Annotated[
        list[
            Literal[
                "RS256",
                "RS384",
                "RS512",
                "PS256",
                "PS384",
                "PS512",
                "ES256",
                "ES384",
                "ES512",
                "EdDSA",
            ]
        ],
        key(
            "the algorithms that tokens may be signed with; never one whose key is a secret",
            expected="a list of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and "
            "EdDSA, at least one",
            min_length=1,
            live=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["RS256", "ES256", "EdDSA"])
    oauth_leeway_s: Annotated[
        int,
        key(
            "how far the clocks of the issuer and the broker may differ",
            ge=0,
            le=600,
            live=True,
        ),
    ] = 10
    oauth_user_claims: Annotated[
        list[str],
        key(
            "the claims of a token that may have the user's name, the first one found counts",
            min_length=1,
            live=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["sub", "client_id"])
    oauth_scope_claims: Annotated[
        list[str],
        key(
            "the claims of a token that have its scopes, each a list, or a text with spaces; with "
            "dots those inside others: `realm_access.roles`",
            min_length=1,
            live=True,
        ),
    ] = msgspec.field(default_factory=lambda: ["scope"])
    oauth_scope_aliases: Annotated[
        dict[str, list[str]],
        key(
            "names of scopes, such as the roles of an issuer, and the scopes that each stands for",
            expected="a table of names, each with a list of scopes",
            live=True,
        ),
    ] = msgspec.field(default_factory=dict)
    management_listen: Annotated[
        list[str],
        key(
            "addresses for the management API, as in `listen`; none turns it off",
            flag="--management-listen",
            metavar="HOST:PORT",
            expected="a list of HOST:PORT or [IPV6]:PORT, ports from 0 to 65535",
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=lambda: [*DEFAULT_MANAGEMENT])
    management_tls_listen: Annotated[
        list[str],
        key(
            "addresses for the management API over TLS, with the certificates for AMQP",
            expected="a list of HOST:PORT or [IPV6]:PORT, ports from 0 to 65535",
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=list)
    management_max_connections: Annotated[
        int,
        key(
            "connections to the management API; for further ones the oldest without a login "
            "are closed",
            ge=1,
            live=True,
        ),
    ] = 500
    management_max_body_bytes: Annotated[
        int,
        key(
            "larger bodies of requests to the management API are refused",
            ge=1 << 10,
            le=1 << 30,
            live=True,
        ),
    ] = 20 << 20
    management_cors_origins: Annotated[
        list[str],
        key(
            "the origins whose web pages may use the management API (CORS), without a login that "
            'the browser remembers; `"*"` is any',
            expected="a list of origins, such as https://HOST:PORT",
            check=check_origins,
            live=True,
        ),
    ] = msgspec.field(default_factory=list)
    management_path_prefix: Annotated[
        str,
        key(
            "the path below which a proxy serves the management API and its pages, such as "
            "`/rabbit`; the proxy may take it away or leave it",
            expected="a path that begins with a slash and does not end with one, or empty",
            check=check_path_prefix,
            live=True,
        ),
    ] = ""
    management_public_origins: Annotated[
        list[str],
        key(
            "the origins under which proxies show the management pages; needed only for a proxy "
            "that neither passes on `Host` nor sends `X-Forwarded-Host`",
            expected="a list of origins, such as https://HOST:PORT",
            check=check_public_origins,
            live=True,
        ),
    ] = msgspec.field(default_factory=list)
    metrics_listen: Annotated[
        list[str],
        key(
            "addresses for metrics and health without a login, as in `listen`; the management API "
            "has them, too, for users with the tag `monitoring`",
            flag="--metrics-listen",
            metavar="HOST:PORT",
            expected="a list of HOST:PORT or [IPV6]:PORT, ports from 0 to 65535",
            check=check_addresses,
        ),
    ] = msgspec.field(default_factory=list)
    metrics_max_objects: Annotated[
        int,
        key(
            "the most queues, exchanges, connections or channels in one metric of single objects",
            ge=0,
            live=True,
        ),
    ] = 10_000
    node_name: Annotated[
        str,
        key(
            "the name of the node in the management API and in metrics; empty means "
            "`amqpstore@HOST`. Tools for RabbitMQ may look for `rabbit@HOST`",
            expected="NAME@HOST of letters, digits, `.`, `_` and `-`, or empty",
            pattern=r"^([A-Za-z0-9._-]+@[A-Za-z0-9._-]+)?$",
        ),
    ] = ""
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        key("events of this level and above are logged", live=True, flag="--log-level"),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"],
        key("a line of the log is `key=value` pairs, or a JSON object", live=True),
    ] = "text"
    segment_bytes: Annotated[
        int,
        key(
            "a segment of this size or more gets no further batch",
            ge=1 << 16,
            le=1 << 30,
        ),
    ] = 16 << 20
    memory_bytes: Annotated[
        int,
        key(
            "memory for messages, with their properties, that are ready or unacked; the bodies of "
            "all others are on disk only",
            ge=1 << 20,
            live=True,
        ),
    ] = 64 << 20
    least_free_bytes: Annotated[
        int,
        key(
            "publishers are blocked while less than twice this is free on the disk; -1 is half of "
            "1 GiB or of three segments, whichever is more, but at most a 20th of the disk",
            ge=-1,
            live=True,
        ),
    ] = -1
    memory_watermark: Annotated[
        float,
        key(
            "publishers are blocked while the process uses more memory than this: a share, up to "
            "1, of that of the machine or the container, or bytes; 0 means never",
            ge=0,
            live=True,
        ),
    ] = 0.6
    max_connections: Annotated[
        int,
        key(
            "connections in all; further ones are closed, 0 means as many as open files allow",
            ge=0,
            live=True,
        ),
    ] = 0
    max_connections_per_peer: Annotated[
        int,
        key(
            "connections of one IPv4 address, or of one /64 of IPv6; further ones are closed, 0 "
            "means any",
            ge=0,
            live=True,
        ),
    ] = 0
    accepts_per_s: Annotated[
        int,
        key(
            "connections that are admitted in a second; others wait, peers take turns, 0 means any",
            ge=0,
            live=True,
        ),
    ] = 5000
    compress_from_bytes: Annotated[
        int,
        key(
            "bodies from this size on are compressed with zstd on disk; 0 means none",
            ge=0,
        ),
    ] = 0
    max_message_bytes: Annotated[
        int,
        key("larger bodies are refused with reply code 311", ge=0, le=1 << 30, live=True),
    ] = 128 << 20
    frame_max: Annotated[int, key("offered to clients, bytes", ge=8192, le=1 << 24, live=True)] = (
        131_072
    )
    channel_max: Annotated[int, key("offered to clients", ge=1, le=65_535, live=True)] = 2047
    max_consumers: Annotated[
        int,
        key(
            "consumers of a connection, on all its channels; one more closes it with 530, 0 means "
            "any number",
            ge=0,
            live=True,
        ),
    ] = 65_535
    max_prefetch: Annotated[
        int,
        key(
            "unacked messages of a consumer, also of one without a prefetch limit (basic.qos); "
            "basic.get on a channel with as many closes it with 406; 0 means any number",
            ge=0,
            live=True,
        ),
    ] = 1_000_000
    names: Annotated[
        Literal["lenient", "strict", "0-10"],
        key(
            "rules for the names of queues and exchanges: as in RabbitMQ, as in AMQP 0-9-1, or as "
            "in AMQP 0-10"
        ),
    ] = "lenient"
    definitions: Annotated[
        str,
        key(
            "a JSON file as `rabbitmqctl export_definitions` writes it: users, permissions, "
            "policies, topology; read at start, and again on SIGHUP",
            expected="the path of a file, or empty",
            pattern=A_PATH_OR_EMPTY,
            live=True,
        ),
    ] = ""
    default_user: Annotated[
        str,
        key(
            "the first user of a new store, an administrator with all permissions, instead of "
            "`guest`; a store that has users gets none",
            max_length=255,
        ),
    ] = ""
    default_password: Annotated[str, key("that user's password", secret=True)] = ""
    product: Annotated[
        str,
        key(
            'the product name that clients are told: `"RabbitMQ"` for clients that need it to '
            "enable features",
            min_length=1,
            max_length=255,
        ),
    ] = "amqpstore"
    version: Annotated[
        str,
        key(
            'the version that clients are told, such as `"3.13.7"`; empty means the broker\'s own',
            max_length=255,
        ),
    ] = ""
    heartbeat_s: Annotated[
        int, key("offered to clients; 0 turns heartbeats off", ge=0, le=65_535, live=True)
    ] = 60
    send_timeout_s: Annotated[
        int,
        key(
            "a client that reads nothing of what is sent to it for this long is disconnected",
            ge=1,
            le=86_400,
            live=True,
        ),
    ] = 300
    connection_bytes: Annotated[
        int,
        key(
            "memory of one connection for unfinished bodies and open transactions; above it the "
            "connection is closed with 506; at least twice `max_message_bytes`",
            ge=1 << 20,
            live=True,
        ),
    ] = 256 << 20
    connections_bytes: Annotated[
        int,
        key(
            "the same for all connections together; above it those that use most are closed with "
            "506",
            ge=1 << 20,
            live=True,
        ),
    ] = 1 << 30
    drain_s: Annotated[
        int,
        key(
            "how long a stop (SIGTERM) waits for clients to ack what was delivered to them; a "
            "second SIGTERM ends the wait",
            ge=0,
            le=86_400,
            live=True,
        ),
    ] = 5
    consumer_timeout_s: Annotated[
        int,
        key(
            "a channel that does not ack a delivery within this time is closed with 406; 0 means "
            "any time; a queue (`x-consumer-timeout`), a policy or a consumer may set another one",
            ge=0,
            le=1 << 31,
            live=True,
        ),
    ] = 1800
    purge_undo_s: Annotated[
        int,
        key(
            "for how long a purge can be undone (`amqpstore messages undo-purge`): so long its "
            "messages stay on disk, unless that is nearly full; 0 means never; a queue "
            "(`x-purge-undo-seconds`) or a policy may set another time",
            ge=0,
            le=366 * 24 * 3600,
            live=True,
        ),
    ] = 60
    provenance_bytes: Annotated[
        int,
        key(
            "about how much disk space may be used to note who published each persistent message, "
            "who got it and who acked it (`amqpstore inspect message`, and the page of a message): "
            "the oldest notes are removed first; 0 means that nothing is noted",
            expected="0, or an integer from 1048576 to 1073741824",
            ge=0,
            le=1 << 30,
            check=check_provenance_bytes,
        ),
    ] = 64 << 20


KEYS = keys_of(Config)
"""The keys by their names, in the order of `Config`; those of a cluster are the last."""


def conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys whose values do not fit those of others, each with the valid values."""
    # A single connection within its own limit could exceed the limit of all.
    if config.connections_bytes < config.connection_bytes:
        yield "connections_bytes", f"at least connection_bytes, {config.connection_bytes}"
    if config.default_password and not config.default_user:
        yield "default_user", "the user's name, as there is default_password"
    if config.default_user and not config.default_password:
        yield "default_password", "the user's password, as there is default_user"
    if set(config.proxy_protocol) - {*config.listen, *config.tls_listen}:
        yield "proxy_protocol", "a list of addresses that are in listen or tls_listen"
    if config.proxy_protocol and config.cluster_name:
        yield "proxy_protocol", "empty, as there is cluster_name: members do not pass headers on"
    if config.tls_listen and not config.tls_certificate:
        yield "tls_certificate", "the path of a file, as there is tls_listen"
    if config.management_tls_listen and not config.tls_certificate:
        yield "tls_certificate", "the path of a file, as there is management_tls_listen"
    if config.tls_client != "none" and not config.tls_ca:
        yield "tls_ca", "the path of a file, unless tls_client is none"
    # This is more than a key without effect: an operator who has revoked a certificate relies on
    # it.
    if config.tls_crl and config.tls_client == "none":
        yield "tls_crl", "empty, unless tls_client asks for certificates"
    if config.oauth_resource_server_id and not (config.oauth_keys or config.oauth_jwks):
        yield "oauth_jwks", "an https URL or a file, unless there is oauth_keys"
    yield from cluster_conflicts(config)
