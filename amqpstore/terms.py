"""Terms: each leadership of a replicated store has one, and each batch names that of its own.

An LSN is a term in its top bits and a batch number in the others, which goes on by one over all
terms. A store that is not replicated is in term 0, where an LSN is the number alone. So two
replicas that have a batch of one LSN have the same batch, and a batch of an earlier leadership that
was never committed is told from the one that took its place.
"""

from __future__ import annotations

MAX_TERM = (1 << 18) - 1
"""The highest term: no LSN is above 2^62."""

_TERM_SHIFT = 44
_NUMBERS = (1 << _TERM_SHIFT) - 1


def term_of(lsn: int) -> int:
    """Return the term that a batch was written in."""
    return lsn >> _TERM_SHIFT


def number_of(lsn: int) -> int:
    """Return which batch of the log it is, counted over all terms."""
    return lsn & _NUMBERS


def batch_named(lsn: int) -> str:
    """Return a batch as people are told of it."""
    return f"batch {number_of(lsn)} of term {term_of(lsn)}" if lsn else "a batch"


def lsn_of(term: int, number: int) -> int:
    """Return the LSN of a batch."""
    return term << _TERM_SHIFT | number
