"""The configuration: what is refused, with what words, and the table of its keys."""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
import trio

from amqpstore_server.config.checks import host_and_port
from amqpstore_server.config.config import KEYS, Config
from amqpstore_server.config.effects import without_effect
from amqpstore_server.config.keys import ConfigError, key, keys_of
from amqpstore_server.config.sources import ConfigSources
from amqpstore_server.listening.listening import listen
from tests.configuration_page import PAGE, generated


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "amqpstore.toml"
    path.write_text(text, "utf-8")
    return str(path)


def load(path: str) -> Config:
    return ConfigSources(path).load().config


def said_of(sources: ConfigSources) -> str:
    with pytest.raises(ConfigError) as caught:
        sources.load()
    return str(caught.value)


def test_the_page_lists_every_key() -> None:
    """A page that lacks one is made anew by `python -m tests.configuration_page`."""
    page = PAGE.read_text("utf-8")
    assert all(f"\n| `{name}` |" in page for name in KEYS)
    assert page == generated(page)


def test_a_row_that_is_not_the_keys_is_written_anew() -> None:
    page = PAGE.read_text("utf-8")
    assert generated(page.replace("| `data` |", "| `date` |")) == page
    assert generated(page.replace(page.splitlines()[-1], "")) == page


def test_no_key_is_named_like_a_variable_of_kubernetes() -> None:
    """Kubernetes sets AMQPSTORE_PORT and others in every container for a service amqpstore."""
    names = [name for name in KEYS if re.match("port|service", name)]
    assert names == []
    assert "config" not in KEYS


def test_every_default_is_valid() -> None:
    for one in KEYS.values():
        assert one.checked(one.default, "default") == one.default


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    found = ConfigSources(path).load()
    assert found.config == Config()
    assert found.path == path
    assert set(found.sources.values()) == {"default"}


def test_an_option_precedes_a_variable_a_variable_the_file_and_the_file_a_default(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, 'data = "f"\nheartbeat_s = 1\nlog_level = "error"\nframe_max = 9000')
    environment = {
        "AMQPSTORE_DATA": "e",
        "AMQPSTORE_HEARTBEAT_S": "2",
        "AMQPSTORE_LISTEN": "127.0.0.1:1, [::1]:2",
        "AMQPSTORE_LOG_LEVEL": "warning",
    }
    loaded = ConfigSources(path, environment, {"data": "o", "listen": ["host:3"]}).load()
    assert loaded.config == Config(
        data="o", listen=["host:3"], heartbeat_s=2, log_level="warning", frame_max=9000
    )
    assert {name: one for name, one in loaded.sources.items() if one != "default"} == {
        "data": "--data",
        "listen": "--listen",
        "heartbeat_s": "AMQPSTORE_HEARTBEAT_S",
        "log_level": "AMQPSTORE_LOG_LEVEL",
        "frame_max": path,
    }
    without = ConfigSources(path, environment).load().config
    assert without.listen == ["127.0.0.1:1", "[::1]:2"]
    assert without.data == "e"


def test_the_file_is_named_by_the_option_the_variable_or_is_in_its_usual_place(
    tmp_path: Path,
) -> None:
    usual, other = tmp_path / "usual", tmp_path / "other"
    sources = ConfigSources(default_path=str(usual))
    assert sources.load().path == ""
    usual.write_text("heartbeat_s = 1")
    assert sources.load().config.heartbeat_s == 1
    other.write_text("heartbeat_s = 2")
    by_variable = replace(sources, environment={"AMQPSTORE_CONFIG": str(other)})
    assert by_variable.load().config.heartbeat_s == 2
    assert replace(by_variable, path=str(usual)).load().config.heartbeat_s == 1
    for none in (replace(sources, environment={"AMQPSTORE_CONFIG": ""}), replace(sources, path="")):
        assert none.load().config == Config()
    other.unlink()
    assert "No such file" in said_of(by_variable)


def test_what_is_in_the_usual_place_has_to_be_valid(tmp_path: Path) -> None:
    assert "regular file" in said_of(ConfigSources(default_path=str(tmp_path)))


def test_variables_that_are_no_keys_are_told(tmp_path: Path) -> None:
    environment = {
        "AMQPSTORE_HARTBEAT": "1",
        "AMQPSTORE_CONFIG": "",
        "AMQPSTORE_HEARTBEAT_S": "1",
        "HOME": "/",
        # Of Kubernetes:
        "AMQPSTORE_PORT": "tcp://10.0.0.1:5672",
        "AMQPSTORE_PORT_5672_TCP_ADDR": "10.0.0.1",
        "AMQPSTORE_SERVICE_HOST": "10.0.0.1",
    }
    assert ConfigSources(environment=environment).load().unknown_variables == (
        "AMQPSTORE_HARTBEAT",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat_s = -1", "heartbeat_s = -1, but it must be an integer from 0 to 65535"),
        ("heartbeat_s = true", "heartbeat_s = true, but it must be an integer"),
        ("heartbeat_s = 1979-05-27", 'heartbeat_s = "1979-05-27", but it must be'),
        ("[heartbeat_s]\na = 1", 'heartbeat_s = {"a":1}, but it must be an integer'),
        ("segment_bytes = 10", "from 65536 to 1073741824"),
        ('log_level = "loud"', 'must be "debug", "info", "warning" or "error"'),
        ("listen = 5672", "listen = 5672, but it must be a list of HOST:PORT"),
        ('listen = ["127.0.0.1:1", "nowhere"]', "('nowhere' is not an address)"),
        ("listen = [1]", "$[0]"),
        ("hartbeat_s = 3", "hartbeat_s is not a key; did you mean heartbeat_s?"),
        ("zzz = 3", "zzz is not a key"),
        ("data = ", "not TOML"),
        ("heartbeat_s = " + "9" * 5000, "not TOML"),
        ("heartbeat_s = " + "9" * 4000, "must be an integer from 0"),
        ("heartbeat_s = nan", "must be an integer from 0"),
        ("data = " + "[" * 100_000, "not TOML"),
        ("#" * (1 << 20) + "#", "more than 1024 KiB"),
        ('data = ""', "data ="),
        ('data = "a\\u0000b"', "data ="),
        ('definitions = "a\\u0000b"', "definitions ="),
        ('definitions = "http://a:1/definitions.json"', "the path of a file, or empty"),
        ('tls_certificate = "FILE:///etc/a.crt"', "the path of a file, or empty"),
        ('oauth_keys = "https://a/keys"', "the path of a directory, or empty"),
        ('data = "s3://bucket/data"', "the path of a directory"),
        ("listen = []", "at least one"),
        (f'product = "{"x" * 256}"', "a string of 1 to 255 characters"),
        (
            "connection_bytes = 2147483648",
            "connections_bytes = 1073741824, but it must be at least",
        ),
        ('proxy_protocol = ["127.0.0.1:9"]', "addresses that are in listen or tls_listen"),
        (
            'proxy_protocol = ["127.0.0.1:5672"]\ncluster_name = "a"\ncluster_etcd = ["http://a:1"]',
            "it must be empty, as there is cluster_name",
        ),
        ('cluster_name = "a/b"', "must be letters, digits, `.`, `_` and `-`, at most 64, or empty"),
        ('cluster_group = ""', "at least one"),
        ('cluster_etcd = ["10.0.0.1:2379"]', "'10.0.0.1:2379' is not http://HOST:PORT"),
        ('cluster_replicate = "10.0.0.1:0"', "has no port that others could know"),
        ('cluster_advertise = "10.0.0.1"', "must be HOST:PORT or [IPV6]:PORT"),
        ("cluster_lease_s = 1", "from 2 to 60"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_is_valid(
    tmp_path: Path, text: str, said: str
) -> None:
    found = said_of(ConfigSources(written(tmp_path, text)))
    assert said in found
    assert "amqpstore.toml" in found or "default: connections_bytes" in found
    assert len(found) < 400


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('cluster_name = "c"', "default: cluster_etcd = []"),
        ('cluster_etcd = ["http://a"]', "default: cluster_name = "),
        ('cluster_certificate = "c.pem"', "default: cluster_ca = "),
        ('cluster_ca = "c.pem"', "default: cluster_certificate = "),
        ('cluster_certificate = "c"\ncluster_key = "k"', "default: cluster_ca = "),
        ('cluster_key = "k"', "default: cluster_certificate = "),
        ('cluster_etcd_key = "k"', "default: cluster_etcd_certificate = "),
        ('cluster_etcd_password = "hunter2"', "default: cluster_etcd_user = "),
    ],
)
def test_a_key_of_a_cluster_that_needs_another_one_is_refused_without_it(
    tmp_path: Path, text: str, said: str
) -> None:
    found = said_of(ConfigSources(written(tmp_path, text)))
    assert found.startswith(said)
    assert "hunter2" not in found


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "amqpstore.toml"
    path.write_bytes(b'data = "\xff"')
    assert "is not TOML" in said_of(ConfigSources(str(path)))


@pytest.mark.parametrize("text", ["", "x", "1.5", "0x", "1\nframe_max = 9000", "-1", "[1]", "true"])
def test_a_wrong_variable_is_refused_with_its_name(text: str) -> None:
    found = said_of(ConfigSources(environment={"AMQPSTORE_HEARTBEAT_S": text}))
    assert found.startswith("AMQPSTORE_HEARTBEAT_S: heartbeat_s = ")
    assert found.endswith("but it must be an integer from 0 to 65535")


@pytest.mark.parametrize("number", ["inf", "nan", "1e400", "1" + "0" * 400, "-1" + "0" * 400])
@pytest.mark.parametrize("name", ["memory_watermark", "accepts_per_s", "least_free_bytes"])
def test_a_number_that_cannot_be_computed_with_is_refused(name: str, number: str) -> None:
    said = said_of(ConfigSources(environment={f"AMQPSTORE_{name.upper()}": number}))
    shown = {"1e400": "inf"}.get(number, number[:79])
    assert f"{name} = {shown}" in said
    assert KEYS[name].expected in said


@pytest.mark.parametrize("key", ["management_listen", "metrics_listen"])
def test_none_is_a_list_of_no_addresses(key: str) -> None:
    by_option = ConfigSources(path="", flags={key: ["none"]})
    by_variable = ConfigSources(path="", environment={f"AMQPSTORE_{key.upper()}": "none"})
    for sources in (by_option, by_variable):
        assert getattr(sources.load().config, key) == []
    with pytest.raises(ConfigError, match="'none' is not an address"):
        ConfigSources(path="", flags={key: ["none", "127.0.0.1:0"]}).load()


def test_a_variable_of_a_list_is_split_at_commas_or_is_a_list_of_toml() -> None:
    def listen(text: str) -> list[str]:
        return ConfigSources(environment={"AMQPSTORE_LISTEN": text}).load().config.listen

    assert listen("a:1") == ["a:1"]
    assert listen("a:1,b:2") == listen('["a:1", "b:2"]') == ["a:1", "b:2"]
    for wrong in ("", "a:1,", '["a:1"', "[::1]"):
        with pytest.raises(ConfigError, match="AMQPSTORE_LISTEN"):
            listen(wrong)
    assert listen("a:1,[::1]:5") == ["a:1", "[::1]:5"]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "heartbeat_s = -1\nnames = 3\nhello = 1")
    sources = ConfigSources(path, {"AMQPSTORE_FRAME_MAX": "1"}, {"listen": ["x"]})
    with pytest.raises(ConfigError) as caught:
        sources.load()
    assert [one.split(" = ")[0] for one in caught.value.problems] == [
        f"{path}: heartbeat_s",
        f"{path}: names",
        f"{path}: hello is not a key",
        "AMQPSTORE_FRAME_MAX: frame_max",
        "--listen: listen",
    ]


def test_a_secret_is_not_in_an_error() -> None:
    class Secrets(msgspec.Struct):
        one: Annotated[str, key("a password", secret=True, max_length=3)] = ""
        some: Annotated[list[str], key("passwords", secret=True)] = []

    found = keys_of(Secrets)
    for name, wrong in (
        ("one", "hunter2"),
        ("one", 5),
        ("some", ["hunter2", 2]),
        ("some", "hunter2"),
    ):
        with pytest.raises(ConfigError) as caught:
            found[name].checked(wrong, "file")
        assert "hunter2" not in str(caught.value)
        assert "(hidden)" in str(caught.value)


def test_a_secret_can_be_in_a_file_that_a_variable_names(tmp_path: Path) -> None:
    file = tmp_path / "password"
    environment = {
        "AMQPSTORE_DEFAULT_USER": "anna",
        "AMQPSTORE_DEFAULT_PASSWORD_FILE": str(file),
    }
    sources = ConfigSources(environment=environment)
    assert f"AMQPSTORE_DEFAULT_PASSWORD_FILE: cannot read {file}: No such file" in said_of(sources)
    for content in (b"s e=c,ret", b"s e=c,ret\n", b"s e=c,ret\r\n", b"\xef\xbb\xbfs e=c,ret\n"):
        file.write_bytes(content)
        loaded = sources.load()
        assert loaded.config.default_password == "s e=c,ret"
        assert loaded.sources["default_password"] == str(file)
        assert not loaded.unknown_variables
    file.write_bytes(b"\xff")
    assert "is not text in UTF-8" in said_of(sources)
    both = replace(sources, environment={**environment, "AMQPSTORE_DEFAULT_PASSWORD": "other"})
    assert "are both set" in said_of(both)
    # Only for secrets: another key has no such variable.
    other = ConfigSources(environment={"AMQPSTORE_LISTEN_FILE": str(file)})
    assert other.load().unknown_variables == ("AMQPSTORE_LISTEN_FILE",)


def test_every_secret_has_such_a_variable() -> None:
    secrets = {name for name, key in KEYS.items() if key.is_secret}
    assert secrets == {"default_password", "cluster_etcd_password"}
    assert not {key.file_variable for key in KEYS.values()} & {
        key.variable for key in KEYS.values()
    }


@pytest.mark.parametrize(
    ("variable", "needed"),
    [("DEFAULT_USER", "default_password"), ("DEFAULT_PASSWORD", "default_user")],
)
def test_the_first_user_has_a_name_and_a_password(variable: str, needed: str) -> None:
    assert needed in said_of(ConfigSources(environment={f"AMQPSTORE_{variable}": "anna"}))


def test_a_byte_order_mark_in_front_of_the_file_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "amqpstore.toml"
    file.write_bytes(b"\xef\xbb\xbfheartbeat_s = 7\n")
    assert ConfigSources(path=str(file)).load().config.heartbeat_s == 7


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), str(tmp_path), "/dev/zero"):
        with pytest.raises(ConfigError, match=r"cannot read the configuration .* regular file"):
            load(path)


@pytest.mark.parametrize("host", ["a..b", "é" * 300, "a\0b"])
def test_a_host_that_can_have_no_address_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        trio.run(listen, [(host, 0)])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        load(str(tmp_path / "nowhere.toml"))


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:5672", ("127.0.0.1", 5672)), ("[::1]:0", ("::1", 0)), ("host:1", ("host", 1))],
)
def test_an_address_is_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert host_and_port(address) == parts


@pytest.mark.parametrize("address", ["", "5672", ":5672", "host:", "host:x", "host:65536", "::1:5"])
def test_any_other_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        host_and_port(address)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", {}),
        ('tls_min_version = "1.3"', {"tls_min_version": "tls_listen"}),
        ('tls_certificate = "a"', {"tls_certificate": "tls_listen"}),
        (
            'tls_listen = ["[::1]:1"]\ntls_certificate = "a"\ntls_ca = "b"',
            {"tls_ca": "tls_client"},
        ),
        (
            (
                'tls_listen = ["[::1]:1"]\ntls_certificate = "a"\ntls_client = "optional"\n'
                'tls_ca = "b"\ntls_login_from = "san_dns"\nmechanisms = ["PLAIN"]'
            ),
            {"tls_login_from": "EXTERNAL"},
        ),
        (
            'oauth_issuer = "a"\noauth_leeway_s = 0',
            dict.fromkeys(("oauth_issuer", "oauth_leeway_s"), "oauth_resource_server_id"),
        ),
        (
            'oauth_resource_server_id = "a"\noauth_jwks = "file://b"\noauth_jwks_ca = "c"',
            {"oauth_jwks_ca": "https"},
        ),
        (
            "management_listen = []\nmanagement_max_body_bytes = 1024\nmetrics_max_objects = 0",
            {"management_max_body_bytes": "management", "metrics_max_objects": "metrics_listen"},
        ),
        (
            'management_listen = []\nmetrics_listen = ["[::1]:1"]\nmetrics_max_objects = 0',
            {},
        ),
        ("cluster_lease_s = 60", {"cluster_lease_s": "cluster_name"}),
        (
            'cluster_name = "a"\ncluster_etcd = ["http://[::1]:1"]\ncluster_etcd_ca = "b"',
            {"cluster_etcd_ca": "https"},
        ),
        (
            'cluster_name = "a"\ncluster_etcd = ["https://[::1]:1"]\ncluster_etcd_ca = "b"',
            {},
        ),
    ],
)
def test_a_key_that_acts_on_nothing_is_told_with_what_it_needs(
    tmp_path: Path, text: str, told: dict[str, str]
) -> None:
    found = dict(without_effect(load(written(tmp_path, text))))
    assert found.keys() == told.keys()
    assert all(needed in found[name] for name, needed in told.items())
