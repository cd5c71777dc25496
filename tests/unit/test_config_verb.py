"""`amqpstore config`: what is in force, where it comes from, and what is not valid."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amqpstore_server.config.config import KEYS, Config
from amqpstore_tools.__main__ import main


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine."""
    monkeypatch.setenv("AMQPSTORE_CONFIG", "")


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["config", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_key_has_its_value_and_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.toml"
    file.write_text("heartbeat_s = 5\nframe_max = 9000\n")
    monkeypatch.setenv("AMQPSTORE_FRAME_MAX", "9001")
    monkeypatch.setenv("AMQPSTORE_FRAME_MIN", "1")
    monkeypatch.delenv("AMQPSTORE_MANAGEMENT_LISTEN", raising=False)
    answer = as_json(
        capsys, "--config", str(file), "--listen", "127.0.0.1:1", "--listen", "[::1]:2"
    )
    assert answer["file"] == str(file)
    assert answer["unknown_variables"] == ["AMQPSTORE_FRAME_MIN"]
    keys = answer["keys"]
    assert list(keys) == list(KEYS)
    assert keys["heartbeat_s"] == {"value": 5, "source": str(file), "live": True}
    assert keys["frame_max"] == {"value": 9001, "source": "AMQPSTORE_FRAME_MAX", "live": True}
    listen = {"value": ["127.0.0.1:1", "[::1]:2"], "source": "--listen", "live": False}
    assert keys["listen"] == listen
    defaults = msgspec.to_builtins(Config())
    for name in KEYS.keys() - {"heartbeat_s", "frame_max", "listen"}:
        expected = {"value": defaults[name], "source": "default", "live": KEYS[name].is_live}
        assert keys[name] == expected


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--data", "a\x1b[2Jb"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["configuration", "file:", "none"]
    assert lines[1] == ["key", "value", "source"]
    assert [line[0] for line in lines[2:]] == list(KEYS)
    assert ["data", r'"a\u001b[2Jb"', "--data"] in lines
    assert ["heartbeat_s", "60", "default"] in lines


def test_a_wrong_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.toml"
    file.write_text("heartbeat_s = -5\nproduct = 1\n")
    assert main(["config", "--config", str(file)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.splitlines() == [
        f"amqpstore config: {file}: heartbeat_s = -5, but it must be an integer from 0 to 65535",
        f"{file}: product = 1, but it must be a string of 1 to 255 characters",
    ]
    assert main(["config", "--json", "--config", str(file)]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["exit_code"] == 2
    assert "heartbeat_s" in found["error"]


def test_a_secret_is_hidden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, key in KEYS.items():
        monkeypatch.setitem(KEYS, name, replace(key, is_secret=True))
    monkeypatch.setenv("AMQPSTORE_VERSION", "hunter2")
    assert as_json(capsys)["keys"]["version"]["value"] == "(hidden)"
    assert main(["config"]) == 0
    assert "hunter2" not in capsys.readouterr().out
    monkeypatch.setenv("AMQPSTORE_HEARTBEAT_S", "hunter2")
    assert main(["config"]) == 2
    assert "hunter2" not in capsys.readouterr().err


def test_keys_without_effect_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMQPSTORE_OAUTH_ISSUER", "https://a.example")
    assert as_json(capsys)["without_effect"] == {"oauth_issuer": "oauth_resource_server_id"}
    assert main(["config"]) == 0
    assert capsys.readouterr().out.endswith(
        "oauth_issuer has no effect: it needs oauth_resource_server_id\n"
    )
