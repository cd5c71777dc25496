"""Errors of a run, each with a message for the person at the terminal."""


class BenchError(Exception):
    """The run failed; its message says what happened."""


class CommandLineError(BenchError):
    """The command line is not valid."""


class ConnectError(BenchError):
    """No usable AMQP connection could be opened; the message says what to do."""


class PeerError(BenchError):
    """The broker closed, refused or returned something, or broke the protocol, during a run."""
