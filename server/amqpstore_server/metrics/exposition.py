"""Metrics as text, in Prometheus' format or OpenMetrics, made in steps.

prometheus-client writes the lines. A family of many objects comes in parts, each of which repeats
its head: it is cut off all but the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

_END = b"# EOF\n"


class _Families:
    """A collector of families that exist already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


class Exposition(NamedTuple):
    """Metrics as text: the type of the content, and its pieces, each of which is a step."""

    content_type: str
    pieces: Iterator[bytes]


def exposition(parts: Iterable[list[Metric]], accept: str) -> Exposition:
    """Return metrics as text in the format that a client accepts.

    Args: parts, of families; of one family they follow each other.
    """
    encode, content_type = choose_encoder(accept)

    def pieces() -> Iterator[bytes]:
        last = ""
        for part in parts:
            for family in part:
                text = encode(_Families([family])).removesuffix(_END)
                if family.name == last:
                    text = b"".join(
                        line for line in text.splitlines(keepends=True) if line[:1] != b"#"
                    )
                last = family.name
                yield text
            if not part:
                yield b""
        if content_type.startswith("application/openmetrics-text"):
            yield _END

    return Exposition(content_type, pieces())
