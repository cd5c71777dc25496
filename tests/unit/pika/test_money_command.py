"""Tests of what the example says when it cannot begin."""

import socket

import pytest

from tests.money_transfer.transfer import main


def test_a_directory_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ledger", "/nowhere/ledger.db"]) == 1
    assert "money_transfer: /nowhere/ledger.db: unable to open" in capsys.readouterr().err


def test_no_broker(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"amqp://guest:secret@127.0.0.1:{port}"
    assert main(["--ledger", f"{tmp_path}/ledger.db", "--url", url, "--retry-s", "0"]) == 1
    assert f"no connection to 127.0.0.1:{port}: AMQPConnectionError" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--url", "nonsense"],
        ["--url", "amqp://127.0.0.1:port"],
        ["--order", "alice"],
        ["--account", "=5"],
        ["--account", "alice=-5"],
        ["--account", f"alice={2**63}"],
        ["--die-at", "nowhere"],
    ],
)
def test_wrong_usage(
    tmp_path: object, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--ledger", f"{tmp_path}/ledger.db", *wrong])
    assert ended.value.code == 2
    assert f"error: argument {wrong[0]}: " in capsys.readouterr().err
