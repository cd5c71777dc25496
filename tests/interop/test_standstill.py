"""A broker that was paused with its machine does not take that for the silence of its clients."""

import os
import signal
import threading
import time
from pathlib import Path

import pika

from tests.broker_process import BrokerProcess
from tests.waiting import wait_until

PAUSE_S = 2.5
"""More than two intervals of one second."""


def test_a_paused_broker_cuts_no_client_that_sent_its_heartbeats(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with BrokerProcess(store, f"{store}.log") as broker:
        broker.start()
        client = pika.BlockingConnection(pika.URLParameters(f"{broker.url}?heartbeat=1"))

        def pause() -> None:
            os.kill(broker.pid, signal.SIGSTOP)
            time.sleep(PAUSE_S)  # it is what is tested
            os.kill(broker.pid, signal.SIGCONT)

        pausing = threading.Thread(target=pause)
        pausing.start()
        while pausing.is_alive():
            client.process_data_events(0.2)
        wait_until(lambda: "the broker stood still" in broker.stderr, "it notices")
        client.channel().queue_declare("q", exclusive=True)
        client.close()
        assert "missed heartbeats" not in broker.stderr
        assert broker.terminate() == 0, broker.log_tail()
