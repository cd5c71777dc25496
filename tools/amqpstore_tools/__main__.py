"""The `amqpstore` command."""

# What is imported here is loaded before the process handles any signal.
from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name, those of the process by default. Returns the exit
    code."""
    if arguments is None:
        arguments = sys.argv[1:]
        if arguments[:1] == ["serve"]:
            from amqpstore_server.process.signals import prepare_signals

            # Loading the broker takes longest of a start, and a SIGHUP may come before that.
            prepare_signals()
    _open_missing_streams()
    try:
        from amqpstore_tools import verbs

        return verbs.run(arguments)
    except KeyboardInterrupt:  # while a verb is loaded; later it ends its work by itself
        sys.stderr.write("amqpstore: interrupted\n")
        return 130


def _open_missing_streams() -> None:
    """Open /dev/null in the place of the standard streams that the process was started without.

    Else a file of the store would get the descriptor of stderr, and with it whatever a library in C
    writes there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
