"""amqplib on Node.js. The scenarios themselves are in nodejs/scenarios.mjs."""

import os
import subprocess

import pytest

from tests.broker_process import REPOSITORY
from tests.interop.external_client import RUN_TIMEOUT_S, missing, need, run
from tests.interop.relay import Relay

NODEJS = os.path.join(REPOSITORY, "tests", "interop", "nodejs")
SCENARIOS = [
    "confirmChannelConfirmsEveryMessage",
    "confirmIsNegativeWhenAFullQueueRejects",
    "consumeAcknowledgeAndNack",
    "nackAllDropsOrRequeues",
    "rejectedMessagesAreDeadLettered",
    "expiredMessagesAreDeadLettered",
    "exchangesAreBoundToExchanges",
    "unroutableMandatoryMessagesAreReturned",
    "consumersAreCancelledWhenTheQueueGoes",
    "cancelledConsumersGetNothingMore",
    "alternateExchangesGetWhatIsNotRouted",
    "remoteCallsWithDirectReplyTo",
    "directReplyToNeedsAConsumerFirst",
    "headersExchangesMatchAllOrAny",
    "prioritiesOfMessagesAndConsumersCount",
    "carbonCopiesAreRouted",
    "propertiesAndHeadersComeBack",
    "errorsCloseTheChannelWithTheirCode",
    "exclusiveQueuesAreLockedToOthers",
    "purgeAndDeleteSayHowMany",
    "recoverRedeliversWhatIsUnacknowledged",
    "secretsAreUpdated",
]


@pytest.fixture
def node_command() -> list[str]:
    """Runs a scenario; skips it, or in CI fails, where Node.js or amqplib is missing."""
    node = need("node", "apt-get install nodejs npm, then make test")
    if not os.path.exists(os.path.join(NODEJS, "node_modules", "amqplib")):
        missing("amqplib is not installed: apt-get install npm, then make test")
    return [node, os.path.join(NODEJS, "run.mjs")]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(node_command: list[str], url: str, name: str, scenario: str) -> None:
    run([*node_command, url, scenario, name])


def test_every_scenario_is_run(node_command: list[str]) -> None:
    listed = run([*node_command, "--list"]).stdout.decode().split()
    assert sorted(listed) == sorted(SCENARIOS)


def test_a_connection_recovers_from_a_cut(node_command: list[str], url: str, name: str) -> None:
    with (
        Relay(url) as relay,
        subprocess.Popen(
            [*node_command, relay.url, "recovery", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as client,
    ):
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"ready\n"
            relay.cut()
            _stdout, stderr = client.communicate(timeout=RUN_TIMEOUT_S)
        finally:
            client.kill()
        assert client.returncode == 0, stderr.decode()
        assert relay.accepted == 2
