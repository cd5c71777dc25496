"""`amqpstore bench`: measure a broker, or the engine by itself."""

import argparse
import signal
import sys
from types import FrameType

from amqpstore_tools.bench import settings as options
from amqpstore_tools.bench import workload
from amqpstore_tools.bench.report import Report
from amqpstore_tools.bench.settings import BenchSettings
from amqpstore_tools.bench.stalls import run as stalls_run
from amqpstore_tools.bench.stalls import settings as stall_settings
from amqpstore_tools.bench.stalls.report import StallReport
from amqpstore_tools.bench.stalls.settings import StallSettings
from amqpstore_tools.bench.store import run as store_run
from amqpstore_tools.bench.store import settings as store_settings
from amqpstore_tools.bench.store.report import StoreReport
from amqpstore_tools.bench.store.settings import StoreSettings
from amqpstore_tools.client.errors import BenchError, CommandLineError

_FAILED, _USAGE, _INTERRUPTED = 1, 2, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload and its options.

    An option that was not given parses as None, so that `BenchSettings.of` can tell it from one
    that the workload does not take.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Measure an AMQP 0-9-1 broker, how long it holds clients up (stalls), or the storage "
        "engine alone (store). "
        "amqpstore bench WORKLOAD --help explains the options. Workloads and their defaults:\n"
    ) + "\n".join(
        f"  {name:8}  {about}\n{_defaults(name)}" for name, about in options.ABOUT.items()
    )
    workloads = parser.add_subparsers(dest="workload", metavar="WORKLOAD", required=True)
    common = argparse.ArgumentParser(add_help=False)
    _add_options(common)
    for name, about in options.ABOUT.items():
        workloads.add_parser(name, parents=[common], help=about, description=about)
    about = "the storage engine alone, without a broker"
    store_settings.add_arguments(workloads.add_parser("store", help=about, description=about))
    about = "how long a quiet client waits while another makes the broker work"
    stall_settings.add_arguments(workloads.add_parser("stalls", help=about))


def _add_options(parser: argparse.ArgumentParser) -> None:
    run = parser.add_argument_group("every workload")
    run.add_argument(
        "--url", default=options.DEFAULT_URL, help="URL of the broker (default: %(default)s)"
    )
    run.add_argument("--seconds", type=float, help="measured seconds after warm-up (default 10)")
    run.add_argument("--messages", type=int, metavar="N", help="end after N messages instead")
    run.add_argument(
        "--warmup",
        type=float,
        metavar="SECONDS",
        help="run this long before measuring (default 1; 0 for drain and with --messages)",
    )
    run.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="give up after this long (default warm-up + seconds + 30; 600 for drain and "
        "--messages)",
    )
    run.add_argument(
        "--queue",
        default="amqpstore-bench",
        metavar="NAME",
        help="name, or prefix of the names, of the queues (default: %(default)s)",
    )
    run.add_argument(
        "--keep", action="store_true", help="keep the queues and their messages afterwards"
    )
    run.add_argument(
        "--pid",
        type=int,
        default=0,
        help="process id of the broker, for its CPU time and memory (default: the process that "
        "listens on the port)",
    )
    run.add_argument("--json", action="store_true", help="print one JSON object")
    publish = parser.add_argument_group("publishing")
    publish.add_argument("--size", type=int, metavar="BYTES", help="size of a message body")
    publish.add_argument(
        "--vary",
        action="store_const",
        const=True,
        help="give each message its own message-id, timestamp and headers",
    )
    publish.add_argument(
        "--persistent", action="store_const", const=True, help="persistent messages (the default)"
    )
    publish.add_argument(
        "--transient",
        dest="persistent",
        action="store_const",
        const=False,
        help="transient messages",
    )
    publish.add_argument(
        "--confirm",
        type=int,
        metavar="WINDOW",
        help="unconfirmed messages allowed to each producer; 0: no confirms",
    )
    publish.add_argument("--producers", type=int, metavar="N", help="number of producers")
    publish.add_argument(
        "--queues", type=int, metavar="N", help="number of queues, published to in turn"
    )
    publish.add_argument(
        "--topic",
        action="store_const",
        const=True,
        help="publish through a topic exchange, to --matches of the queues each",
    )
    publish.add_argument(
        "--matches", type=int, metavar="N", help="number of queues that a message goes to"
    )
    publish.add_argument("--queue-type", choices=("classic", "quorum"), help="type of the queues")
    publish.add_argument("--batch", type=int, metavar="N", help="number of messages in a batch")
    publish.add_argument("--by", choices=("tx", "confirms"), help="what makes a batch safe")
    publish.add_argument("--rate", type=int, metavar="N", help="messages per second")
    consume = parser.add_argument_group("consuming")
    consume.add_argument("--consumers", type=int, metavar="N", help="number of consumers")
    consume.add_argument(
        "--prefetch",
        type=int,
        metavar="N",
        help="unacked messages allowed to each consumer; 0: no limit",
    )
    consume.add_argument(
        "--auto-ack", action="store_const", const=True, help="consume without acks"
    )
    consume.add_argument(
        "--ack-every",
        type=int,
        metavar="N",
        help="ack (with multiple) at the end of the read in which N are unacked (default 1: "
        "one ack for each read)",
    )
    many = parser.add_argument_group("many connections")
    many.add_argument("--connections", type=int, metavar="N", help="number of connections")
    many.add_argument(
        "--processes", type=int, metavar="N", help="number of processes that share the connections"
    )


def run(args: argparse.Namespace) -> int:
    """Run one benchmark; returns the exit code: 0, 1 failed, 2 wrong usage, 130 interrupted."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        report: Report | StoreReport | StallReport
        if args.workload == "store":
            report = store_run.run(StoreSettings.of(args))
        elif args.workload == "stalls":
            report = stalls_run.run(StallSettings.of(args))
        else:
            report = workload.run(BenchSettings.of(args))
    except CommandLineError as error:
        sys.stderr.write(f"amqpstore bench: {error}\n")
        return _USAGE
    except (BenchError, OSError) as error:
        sys.stderr.write(f"amqpstore bench: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write("amqpstore bench: interrupted\n")
        return _INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    if args.json:
        sys.stdout.write(report.as_json() + "\n")
    else:
        report.print_table()
    return 0


def _defaults(name: str) -> str:
    """Return the options that a workload takes, each with its default."""
    taken = [
        f"--{option.replace('_', '-')}" + ("" if default is True else f" {default}")
        for option, default in options.WORKLOADS[name].items()
        if default is not False and default != ""
    ]
    return f"            {' '.join(taken)}"


def _interrupt(_number: int, _stack: FrameType | None) -> None:
    raise KeyboardInterrupt
