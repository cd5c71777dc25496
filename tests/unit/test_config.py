"""The configuration: what is refused, with what words, and the table of it in the README."""

import json
import os
from pathlib import Path

import msgspec
import pytest
import trio

from amqpstore_server.app import listen
from amqpstore_server.config import Config, ConfigError, host_and_port, load
from tests.format.document import code, table

README = Path(__file__).parents[2] / "server" / "README.md"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "amqpstore.toml"
    path.write_text(text, "utf-8")
    return str(path)


def test_the_readme_lists_every_key_with_its_default() -> None:
    listed = {
        code(row.cells["key"]): json.loads(row.cells["default"].strip("`"))
        for row in table(README.read_text("utf-8"), "Configuration")
    }
    assert listed == msgspec.to_builtins(Config())


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(written(tmp_path, "")) == Config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("heartbeat_s = -1", "$.heartbeat_s"),
        ("segment_bytes = 10", ">= 65536"),
        ('log_level = "loud"', "$.log_level"),
        ("listen = 5672", "$.listen"),
        ("hartbeat = 3", "hartbeat"),
        ("data = ", "not TOML"),
        ("heartbeat_s = " + "9" * 5000, "not TOML"),
        ("data = " + "[" * 100_000, "not TOML"),
        ("#" * (1 << 20) + "#", "more than 1024 KiB"),
        ('data = ""', "$.data"),
        ('data = "a\\u0000b"', "$.data"),
        ('definitions = "a\\u0000b"', "$.definitions"),
        ("listen = []", "$.listen"),
        (f'product = "{"x" * 256}"', "$.product"),
    ],
)
def test_a_wrong_file_is_refused_by_name_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"amqpstore\.toml") as caught:
        load(path)
    assert said in str(caught.value)


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
    with pytest.raises(ConfigError, match="HOST:PORT"):
        host_and_port(address)
