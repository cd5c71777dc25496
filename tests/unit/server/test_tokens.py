"""Tokens: which are accepted, and what they grant."""

import base64
import json
import math
import re
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jwt
import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from amqpstore_server.broker.errors import AccessRefusedError, NotAllowedError
from amqpstore_server.broker.rights.scopes import TokenError, TokenRights, Wildcard, scopes_and_tags
from amqpstore_server.config.config import Config
from amqpstore_server.config.keys import ConfigError
from amqpstore_server.config.sources import ConfigSources
from amqpstore_server.logins import token_keys
from amqpstore_server.logins import tokens as token_logins
from amqpstore_server.logins.token_keys import KeysError, KeySource
from amqpstore_server.logins.tokens import Tokens
from tests.token_issuer import Issuer
from tests.waiting import wait_until

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
LARGER = ec.generate_private_key(ec.SECP384R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def claims(**others: Any) -> dict[str, Any]:
    """Return what a right token says; None leaves a claim out."""
    found = {
        "sub": "anna",
        "aud": ["broker", "another"],
        "exp": time.time() + 60,
        "scope": "broker.read:*/*",
        **others,
    }
    return {name: value for name, value in found.items() if value is not None}


def token(key: Any = EC, algorithm: str = "ES256", kid: str | None = "e", **others: Any) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**others), key, algorithm, headers=headers)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "e.pem").write_bytes(pem(EC))
    (tmp_path / "r.pem").write_bytes(pem(RSA))
    (tmp_path / "README").write_text("not a key")
    return str(tmp_path)


def tokens(directory: str, **settings: Any) -> Tokens:
    return Tokens(Config(oauth_resource_server_id="broker", oauth_keys=directory, **settings))


def test_a_right_token_is_accepted(directory: str) -> None:
    expires_at = time.time() + 60
    rights = tokens(directory).verified(token(exp=expires_at))
    assert rights.user == "anna"
    assert rights.expires_at == pytest.approx(expires_at + 10)
    assert tokens(directory).verified(token(RSA, "RS256", "r", aud="broker")).user == "anna"
    # As some issuers write several of them.
    assert tokens(directory).verified(token(aud="another broker")).user == "anna"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"aud": "another"}, "not for broker"),
        ({"aud": "brokers another"}, "not for broker"),
        ({"aud": 5}, "aud"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"exp": time.time() - 60}, "expired"),
        ({"exp": "soon"}, "exp"),
        ({"exp": math.inf}, ""),
        ({"nbf": time.time() + 9000}, "not yet valid"),
        ({"iss": "somebody"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"sub": None}, "user"),
        ({"sub": ""}, "user"),
        ({"sub": 7}, "user"),
        ({"sub": "x" * 256}, "user"),
        ({"scope": 5}, "scope"),
        ({"kid": "unheard of"}, "no key"),
        ({"kid": "../e"}, "no key"),
        ({"kid": None}, "no key"),
        ({"kid": "r"}, ""),  # the signature is of another key, of another type
        ({"key": OTHER}, "Signature"),
        ({"key": LARGER, "algorithm": "ES384"}, "alg"),
        ({"key": RSA, "algorithm": "RS512", "kid": "r"}, "alg"),  # not in the configuration
        ({"key": "", "algorithm": "none"}, ""),
    ],
)
def test_a_wrong_token_is_refused(directory: str, wrong: dict[str, Any], reason: str) -> None:
    issued = tokens(directory, oauth_issuer="https://issuer")
    assert issued.verified(token(iss="https://issuer")).user == "anna"
    made = token(**{"iss": "https://issuer", **wrong})
    with pytest.raises(TokenError, match=f"(?i){reason}"):
        issued.verified(made)


def test_a_public_key_is_no_secret(directory: str) -> None:
    """A token that is signed with HMAC, the public key as the secret."""
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"r"}').rstrip(b"=")
    payload = base64.urlsafe_b64encode(json.dumps(claims()).encode()).rstrip(b"=")
    signer = jwt.get_algorithm_by_name("HS256")
    signature = signer.sign(header + b"." + payload, b"x" * 64)
    forged = b".".join([header, payload, base64.urlsafe_b64encode(signature).rstrip(b"=")])
    with pytest.raises(TokenError):
        tokens(directory).verified(forged.decode())
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none","kid":"r"}').rstrip(b"=")
    with pytest.raises(TokenError):
        tokens(directory).verified(b".".join([unsigned, payload, b""]).decode())


def test_the_clocks_may_differ(directory: str) -> None:
    late = tokens(directory, oauth_leeway_s=30)
    assert late.verified(token(exp=time.time() - 20, nbf=time.time() + 20)).user == "anna"
    with pytest.raises(TokenError):
        late.verified(token(exp=time.time() - 40))


def test_claims_and_scopes_are_configured(directory: str) -> None:
    own = tokens(directory, oauth_user_claims=["name", "sub"], oauth_scope_prefix="mq/")
    scope = ["mq/read:*/q", "broker.write:*/*", 5, "mq/tag:administrator", "mq/tag:x"]
    rights = own.verified(token(name="Anna", scope=scope))
    assert rights.user == "Anna"
    assert rights.tags == {"administrator", "x"}
    assert [one.permission for one in rights.scopes] == ["read"]
    assert own.verified(token(sub="berta")).user == "berta"
    one_key = Path(directory) / "r.pem"
    one_key.unlink()
    assert tokens(directory).verified(token(kid=None)).user == "anna"


@given(st.text(alphabet="eyJ.-_0aA=", max_size=60) | st.text(max_size=40))
def test_any_text_is_refused(text: str) -> None:
    own = Tokens(Config(oauth_resource_server_id="broker"))
    with pytest.raises(TokenError):
        own.verified(text)


@pytest.mark.parametrize("part", [0, 1])
def test_a_token_that_nests_deeply_is_refused(directory: str, part: int) -> None:
    parts = token().split(".")
    deep = b'{"kid":"e","alg":"ES256","x":' + b"[" * 5000 + b"]" * 5000 + b"}"
    parts[part] = base64.urlsafe_b64encode(deep).rstrip(b"=").decode()
    with pytest.raises(TokenError):
        tokens(directory).verified(".".join(parts))


# Keys.


def test_a_key_set_is_read_from_a_file(tmp_path: Path) -> None:
    keys = [
        {**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC.public_key())), "kid": "e"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "EC", "crv": "unheard of", "kid": "new"},
        {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key())), "use": "enc"},
    ]
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": keys}))
    for source in (str(path), f"file://{path}"):
        own = Tokens(Config(oauth_resource_server_id="broker", oauth_jwks=source))
        assert own.verified(token()).user == "anna"
        with pytest.raises(TokenError, match="no key"):
            own.verified(token(b"secret" * 8, "HS256", "secret"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"keys": 5}', '{"keys": [5]}', "[" * 9000])
def test_a_wrong_key_set_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        Tokens(Config(oauth_resource_server_id="broker", oauth_jwks=str(path)))


def test_a_wrong_key_file_is_named(directory: str) -> None:
    path = Path(directory) / "bad.pem"
    path.write_text("no key")
    with pytest.raises(ConfigError, match=re.escape(str(path))):
        tokens(directory)


@pytest.mark.parametrize(
    "setting",
    [
        'oauth_jwks = "http://issuer/keys"',
        'oauth_algorithms = ["none"]',
        'oauth_algorithms = ["HS256"]',
        "oauth_algorithms = []",
        'oauth_resource_server_id = "broker"',
    ],
)
def test_settings_that_are_not_safe_are_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "amqpstore.toml"
    path.write_text(setting)
    with pytest.raises(ConfigError):
        ConfigSources(str(path)).load()


# Scopes.


def rights(*scopes: str) -> TokenRights:
    found, tags = scopes_and_tags(scopes)
    return TokenRights("anna", found, tags, 0.0)


def test_scopes_are_permissions_on_names() -> None:
    access = rights("read:%2F/q*", "write:%2F/amq.default", "configure:*/tmp.*").access("/")
    access.check("read", "queue", "q1")
    access.check("write", "exchange", "")
    access.check("configure", "queue", "tmp.x")
    for permission, name in (("read", "x"), ("write", "q1"), ("configure", "q1")):
        with pytest.raises(AccessRefusedError):
            access.check(permission, "queue", name)
    access.check_any("queue", "q1")
    with pytest.raises(AccessRefusedError):
        access.check_any("queue", "other")
    assert access.has_topics
    with pytest.raises(NotAllowedError):
        rights("read:%2F/q*").access("other")
    with pytest.raises(NotAllowedError):
        rights("read", "read:x", "read:a/b/c/d", "admin:*/*", "tag:administrator").access("x")


def test_scopes_restrict_routing_keys() -> None:
    access = rights("write:*/amq.topic/orders.*", "write:*/other/*", "write:*/plain").access("/")
    assert access.has_topics
    access.check_topic("write", "amq.topic", "orders.new")
    access.check_topic("write", "other", "anything")
    for exchange, key in (("amq.topic", "bills.new"), ("third", "orders.new"), ("plain", "any")):
        with pytest.raises(AccessRefusedError):
            access.check_topic("write", exchange, key)
    with pytest.raises(AccessRefusedError):
        access.check_topic("read", "amq.topic", "orders.new")


def test_scopes_without_a_routing_key_grant_none() -> None:
    """RabbitMQ has the same rule: `write:*/*` is not enough to publish to a topic exchange."""
    access = rights("write:*/*", "read:*/*").access("/")
    access.check("write", "exchange", "amq.topic")
    with pytest.raises(AccessRefusedError):
        access.check_topic("write", "amq.topic", "k")
    access = rights("write:*/*/*", "read:*/*/*").access("/")
    assert not access.has_topics
    access.check_topic("write", "amq.topic", "k")


def test_scopes_may_be_in_several_claims(directory: str) -> None:
    issued = tokens(directory, oauth_scope_claims=["scope", "extra"])
    for extra in ("broker.configure:*/* other.read:*/*", ["broker.configure:*/*", 7]):
        found = issued.verified(token(scope="broker.read:*/*", extra=extra))
        assert [one.permission for one in found.scopes] == ["read", "configure"]
    with pytest.raises(TokenError, match="extra"):
        issued.verified(token(extra=5))


@pytest.mark.parametrize(
    ("claim", "others"),
    [
        ("realm_access.roles", {"realm_access": {"roles": ["broker.read:*/*", "other"]}}),
        ("realm_access.roles", {"realm_access.roles": "broker.read:*/*"}),
        (
            "authorization.permissions.scopes",
            {
                "authorization": {
                    "permissions": [{"rsname": "x"}, 5, {"scopes": ["broker.read:*/*"]}, {}]
                }
            },
        ),
        ("extra_scope", {"extra_scope": {"broker": ["read:*/*"], "other": ["write:*/*"]}}),
        ("extra_scope", {"extra_scope": {"broker": "read:*/*"}}),
    ],
)
def test_scopes_may_be_inside_other_claims(
    directory: str, claim: str, others: dict[str, Any]
) -> None:
    """Keycloak and UAA issue such tokens."""
    issued = tokens(directory, oauth_scope_claims=["scope", claim])
    found = issued.verified(token(scope=None, **others))
    assert [one.permission for one in found.scopes] == ["read"]
    assert issued.verified(token(scope="broker.write:*/*")).scopes[0].permission == "write"


@pytest.mark.parametrize("value", [{"roles": {"other": ["x"]}}, {"role": 5}, [[], 5], "text"])
def test_claims_of_other_shapes_grant_nothing(directory: str, value: object) -> None:
    issued = tokens(directory, oauth_scope_claims=["scope", "realm_access.roles"])
    found = issued.verified(token(scope=None, realm_access=value))
    assert (found.scopes, found.tags) == ((), frozenset())
    with pytest.raises(TokenError, match="realm_access"):
        issued.verified(token(realm_access={"roles": 5}))


def test_a_scope_may_stand_for_others(directory: str) -> None:
    """Scopes of an alias need the prefix, as all do; an alias of an alias grants nothing."""
    aliases = {
        "admin": ["broker.tag:administrator", "broker.read:*/*", "chief"],
        "chief": ["broker.configure:*/*"],
        "broker.write:*/*": ["read:*/*"],
    }
    issued = tokens(directory, oauth_scope_aliases=aliases)
    found = issued.verified(token(scope="admin broker.write:*/*"))
    assert found.tags == {"administrator"}
    assert [one.permission for one in found.scopes] == ["write", "read"]
    assert not issued.verified(token(scope="Admin")).scopes


def test_aliases_are_a_table_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "amqpstore.toml"
    file.write_text('[oauth_scope_aliases]\nadmin = ["broker.tag:administrator"]\n')
    expected = {"admin": ["broker.tag:administrator"]}
    assert ConfigSources(str(file), {}, {}).load().config.oauth_scope_aliases == expected
    variable = {"AMQPSTORE_OAUTH_SCOPE_ALIASES": '{admin = ["broker.tag:administrator"]}'}
    assert ConfigSources("", variable, {}).load().config.oauth_scope_aliases == expected
    file.write_text('oauth_scope_aliases = {admin = "broker.tag:administrator"}\n')
    with pytest.raises(ConfigError, match="a table of names, each with a list of scopes"):
        ConfigSources(str(file), {}, {}).load()


def test_other_scopes_take_effect_at_once() -> None:
    access = rights("read:*/*").access("/")
    access.check("read", "queue", "q")
    told: list[bool] = []
    access.on_change.add(lambda: told.append(True))
    access.change({"scopes": rights("read:*/other").scopes})
    assert told == [True]
    assert not access.has_granted("read", "queue", "q")
    with pytest.raises(AccessRefusedError):
        access.check("read", "queue", "q")


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**", "%2A", "%2F", "%", "ab"]), max_size=8),
    st.text(alphabet="ab*/%", max_size=12),
)
def test_wildcards_match_as_patterns_do(parts: list[str], text: str) -> None:
    pattern = "".join(parts)
    expected = re.fullmatch(".*".join(re.escape(unquote(one)) for one in pattern.split("*")), text)
    assert Wildcard(pattern).matches(text) == bool(expected)
    assert not Wildcard(pattern).is_any or expected


def test_a_wildcard_takes_linear_time() -> None:
    assert not Wildcard("*a" * 5000 + "b").matches("a" * 20_000)


@pytest.fixture
def remote(tmp_path: Path) -> Generator[tuple[Issuer, Tokens]]:
    """An issuer, and what fetches its keys."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issuer = Issuer(ca)
    try:
        yield (
            issuer,
            Tokens(
                Config(
                    oauth_resource_server_id="broker",
                    oauth_jwks=issuer.url,
                    oauth_jwks_ca=str(tmp_path / "ca.pem"),
                )
            ),
        )
    finally:
        issuer.close()


async def granted(tokens: Tokens, token: str) -> TokenRights:
    """Return what a login with a token is granted."""
    await tokens.find_key(token)
    return await tokens.rights(token)


def test_new_keys_are_fetched_but_not_for_each_token(remote: tuple[Issuer, Tokens]) -> None:
    issuer, tokens = remote
    clock = MockClock()

    async def ask() -> None:
        await granted(tokens, issuer.token())
        issuer.new_key("unknown")
        clock.jump(9.9)
        for _ in range(3):
            with pytest.raises(TokenError):
                await granted(tokens, issuer.token())
        assert issuer.fetches == 1, "each unknown key is asked for"
        clock.jump(0.2)
        assert (await granted(tokens, issuer.token("bob"))).user == "bob"
        assert issuer.fetches == 2

    trio.run(ask, clock=clock)


def test_keys_that_are_known_are_fetched_again_after_a_time(remote: tuple[Issuer, Tokens]) -> None:
    """The issuer may have withdrawn one."""
    issuer, there = remote
    clock = MockClock()

    async def ask() -> None:
        for after_s, fetches in ((0, 1), (token_logins._FETCH_AGAIN_S - 1, 1), (1, 2)):
            clock.jump(after_s)
            await granted(there, issuer.token())
            assert issuer.fetches == fetches

    trio.run(ask, clock=clock)


def test_an_issuer_that_is_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "_STEP_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(KeysError, match="timed out"):
            KeySource(Config(oauth_jwks=address)).read()


def test_an_issuer_that_takes_for_ever_is_left(
    remote: tuple[Issuer, Tokens], caplog: pytest.LogCaptureFixture
) -> None:
    """The issuer's answer comes byte by byte, each of them in time."""
    issuer, tokens = remote
    issuer.drips = True
    clock = MockClock()

    async def ask() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused)
            await trio.to_thread.run_sync(wait_until, lambda: issuer.fetches == 1)
            clock.jump(10.1)
        issuer.drips = False
        clock.jump(10.1)
        await granted(tokens, issuer.token())

    async def refused() -> None:
        with pytest.raises(TokenError):
            await granted(tokens, issuer.token())

    trio.run(ask, clock=clock)
    assert "keys for tokens not fetched" in caplog.text
    assert [record.reason for record in caplog.records if hasattr(record, "reason")] == [
        f"{issuer.url}: took more than 10 s"
    ]
