"""Fixtures around a real broker process.

Set AMQPSTORE_TEST_URL (`amqp://guest:guest@127.0.0.1:5673/%2F`) to run the interop and the wire
tests against a broker that runs already, of whatever make. Tests that must restart or kill the
broker are then skipped, as that process is not theirs.
"""

import gc
import os
import re
import shlex
import signal
import socket
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pika.adapters.select_connection import _PollerBase
from pika.connection import Parameters
from xdist.scheduler import LoadScopeScheduling

from tests import quick_passwords, uncollected
from tests.broker_process import BrokerProcess

URL_VARIABLE = "AMQPSTORE_TEST_URL"

# The seed of the run alone decides about examples (see `sampling`): what failed on a machine before
# is not kept, and hypothesis' own profile for CI is not used. No property is about time: on a busy
# machine an example may take as long as it does.
settings.register_profile(
    "of the seed",
    database=None,
    derandomize=False,
    print_blob=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("of the seed")

quick_passwords.use()

# What a broker or a client takes from its environment would decide about a test as well.
for variable in [*os.environ]:
    is_ours = variable.startswith("AMQPSTORE_") and variable != URL_VARIABLE
    if is_ours or variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        del os.environ[variable]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"

# The path of a socket has at most 107 octets, of which pytest and the broker take 80 below this
# directory; and pytest's have the user's name in them, which is no test's business either.
MAX_TEMPORARY = 26
os.environ["LOGNAME"] = f"u{os.getuid()}"
if len(os.fsencode(tempfile.gettempdir())) > MAX_TEMPORARY:
    os.environ["TMPDIR"] = "/tmp"
    tempfile.tempdir = None

# To check a password takes longer than pika waits for a login if others use all of the machine.
Parameters.DEFAULT_SOCKET_TIMEOUT = 60.0  # type: ignore[misc]
Parameters.DEFAULT_STACK_TIMEOUT = 60.0  # type: ignore[misc]

# Many brokers run at the same time: those whose management API is tested say where they listen.
os.environ["AMQPSTORE_MANAGEMENT_LISTEN"] = ""


class LoopSocket(socket.socket):
    """One of the two that wake a loop of pika. Pika leaves them open where a connection is lost as
    soon as it is there, and whichever test came next would fail for that: so they close with it.
    """

    def __del__(self) -> None:
        self.close()


def loop_sockets() -> tuple[LoopSocket, LoopSocket]:
    ours, theirs = (LoopSocket(fileno=one.detach()) for one in socket.socketpair())
    ours.setblocking(False)
    theirs.setblocking(False)
    return ours, theirs


_PollerBase._get_interrupt_pair = staticmethod(loop_sockets)  # type: ignore[attr-defined] # not in its types

TESTS_OF_TEXTS = tuple(
    f"tests/unit/test_{name}.py"
    for name in ("class_names", "docstrings", "import_cycles", "imports")
)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Modules go to whichever worker is free, as their tests share a broker; all of tests/spark to
    one of them, as they share a session of Spark, and those of our source texts, as they share the
    trees of all modules. In a share or a sample each test goes by itself."""

    def _split_scope(self, nodeid: str) -> str:
        module = nodeid.partition("::")[0]
        if "tests/spark/" in module:
            return "spark"
        if module.startswith(TESTS_OF_TEXTS):
            return "texts"
        option = self.config.option
        return nodeid if option.share or option.sample_s is not None else module


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Called by xdist."""
    # In their order: what is long is not at the end.
    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Called by xdist, whose workers would run without the interpreter's options `-bb -X dev`."""
    options = ["-" + "b" * sys.flags.bytes_warning] if sys.flags.bytes_warning else []
    options += ["-X", "dev"] if sys.flags.dev_mode else []
    for spec in specs:
        spec.python = shlex.join([sys.executable, *options])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Called by xdist for each worker."""
    node.workerinput["flags"] = [*sys.flags]


LONG_TIMEOUT_S = 900
"""For a test marked `long`, however it is run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give long tests their own timeout.

    One that ends a property in the middle of an example does not look like a timeout: hypothesis
    repeats the example, draws more than before, and reports a strategy that depends on other state.
    """
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


pytest_plugins = ["tests.call_baselines", "tests.sampling"]


@pytest.fixture
def terminal_signals() -> Generator[None]:
    """SIGINT and SIGHUP as a terminal leaves them, for the test and the processes that it starts:
    a run under nohup or behind a shell's `&` ignores them, and so would these.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def only_what_is_new() -> Generator[None]:
    with uncollected.only_what_is_new():
        yield


@pytest.fixture
def no_collections(only_what_is_new: None) -> Generator[None]:
    with uncollected.no_collections():
        yield


@pytest.fixture
def unreachable(only_what_is_new: None) -> Generator[Callable[[], Counter[str]]]:
    with uncollected.unreachable() as counted:
        yield counted


@pytest.fixture
def no_garbage() -> Generator[None]:
    """Keep the garbage of other tests from being collected during a test, which would lengthen what
    it times.
    """
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def data_directory(tmp_path: object) -> str:
    """A path where no store is yet."""
    return os.path.join(str(tmp_path), "store")


@pytest.fixture(scope="module")
def broker_type() -> type[BrokerProcess]:
    """The class that starts brokers: a module whose tests are of the command itself has another
    one.
    """
    return BrokerProcess


@pytest.fixture
def broker(data_directory: str, broker_type: type[BrokerProcess]) -> Generator[BrokerProcess]:
    """A running broker of this test's own, which the test may restart or kill."""
    _needs_own_process()
    with broker_type(data_directory, f"{data_directory}.log") as process:
        process.start()
        yield process
        if process.running:
            assert process.terminate() == 0, process.log_tail()
        assert "Traceback" not in process.stderr, process.log_tail()


@pytest.fixture
def stopped_broker(
    data_directory: str, broker_type: type[BrokerProcess]
) -> Generator[BrokerProcess]:
    """A broker that the test starts, or fails to start, by itself."""
    _needs_own_process()
    with broker_type(data_directory, f"{data_directory}.log") as process:
        yield process


@pytest.fixture(scope="module")
def module_broker(tmp_path_factory: pytest.TempPathFactory) -> Generator[BrokerProcess | None]:
    """One broker for a module's small tests; None when AMQPSTORE_TEST_URL names another."""
    if os.environ.get(URL_VARIABLE):
        yield None
        return
    directory = os.path.join(str(tmp_path_factory.mktemp("broker")), "store")
    with BrokerProcess(directory, f"{directory}.log") as process:
        process.start()
        yield process
        assert process.terminate() == 0, process.log_tail()


@pytest.fixture
def url(module_broker: BrokerProcess | None) -> Generator[str]:
    """The URL of the module's broker. Fails the test that brings the broker down or makes it
    log a traceback, and restarts it for the next."""
    if module_broker is None:
        yield os.environ[URL_VARIABLE]
        return
    if not module_broker.running:
        module_broker.start()
    seen = len(module_broker.stderr)
    yield module_broker.url
    assert module_broker.running, f"the broker died\n{module_broker.log_tail()}"
    assert "Traceback" not in module_broker.stderr[seen:], module_broker.log_tail()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A queue or exchange name that no other test and no earlier run has used."""
    test = re.sub(r"[^A-Za-z0-9_]+", ".", request.node.name)[:80]
    return f"{test}.{uuid.uuid4().hex[:12]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of the broker's log below a failed test."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for value in item.funcargs.values():
            if isinstance(value, BrokerProcess):
                report.sections.append(("broker log", value.log_tail()))
    return report


def _needs_own_process() -> None:
    if os.environ.get(URL_VARIABLE):
        pytest.skip(f"needs a broker process of its own, {URL_VARIABLE} names another's")
