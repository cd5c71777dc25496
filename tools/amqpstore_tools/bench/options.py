"""The options of the workloads on the command line."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from amqpstore_tools.bench.settings import ABOUT, DEFAULT_URL, WORKLOADS, BenchSettings
from amqpstore_tools.client.errors import CommandLineError


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all workloads.

    An option that was not given parses as None, so that `BenchSettings.of` can tell it from one
    that the workload does not take.
    """
    run = parser.add_argument_group("every workload")
    run.add_argument("--url", default=DEFAULT_URL, help="URL of the broker (default: %(default)s)")
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


def defaults_of(name: str) -> str:
    """Return the options that a workload takes, each with its default."""
    taken = [
        f"--{option.replace('_', '-')}" + ("" if default is True else f" {default}")
        for option, default in WORKLOADS[name].items()
        if default is not False and default != ""
    ]
    return f"            {' '.join(taken)}"


class OptionParser(argparse.ArgumentParser):
    """A parser that raises where argparse would end the process."""

    def error(self, message: str) -> NoReturn:
        """Raise CommandLineError."""
        raise CommandLineError(message)


def parsed(arguments: Sequence[str]) -> BenchSettings:
    """Return one run of a workload, from a command line without `amqpstore bench`.

    Raises:
        CommandLineError: the workload does not exist, or does not take these options.
    """
    parser = OptionParser(prog="amqpstore bench", add_help=False, allow_abbrev=False)
    parser.add_argument("workload", choices=list(ABOUT))
    add_options(parser)
    return BenchSettings.of(parser.parse_args(arguments))
