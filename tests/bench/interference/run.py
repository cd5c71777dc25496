"""One case after the other."""

import sys
from collections.abc import Iterator, Sequence

from amqpstore_tools.client.connection import Address, Connection


def product_of(address: Address) -> tuple[str, str]:
    """Return the name and the version of a broker. Raises: BenchError."""
    control = Connection(address)
    control.close()
    return control.product, control.version


def in_turn(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the cases; a terminal shows which one is running."""
    is_shown = sys.stderr.isatty()
    for number, name in enumerate(names, 1):
        if is_shown:
            sys.stderr.write(f"\r\x1b[K{number} of {len(names)}: {name}")
            sys.stderr.flush()
        yield name
    if is_shown:
        sys.stderr.write("\r\x1b[K")
