"""The name of a transaction branch."""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Self

_LARGEST_FORMAT_ID = 2**32 - 1
_MAX_ID_BYTES = 64
_FORMAT_ID = struct.Struct(">I")


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """One branch of one global transaction (X/Open XA, section 4.2).

    On the wire: format-id as a long, then global-id and branch-id as short octet strings. They are
    octets, not text.

    Raises: ValueError when a part is too long or out of range, or the global-id is empty.
    """

    format_id: int
    """The naming scheme of the other two, 0 to 2**32 - 1; the transaction manager's choice."""
    global_id: bytes
    """1 to 64 octets, the same for all branches of a transaction."""
    branch_id: bytes = b""
    """0 to 64 octets, different for each branch of a transaction."""

    def __post_init__(self) -> None:
        if not 0 <= self.format_id <= _LARGEST_FORMAT_ID:
            raise ValueError(f"format-id {self.format_id} is not within 0 to {_LARGEST_FORMAT_ID}")
        if not 1 <= len(self.global_id) <= _MAX_ID_BYTES:
            raise ValueError(f"global-id has {len(self.global_id)} octets, not 1 to 64")
        if len(self.branch_id) > _MAX_ID_BYTES:
            raise ValueError(f"branch-id has {len(self.branch_id)} octets, not 0 to 64")

    @classmethod
    def new(cls, format_id: int, prefix: bytes = b"", branch_id: bytes = b"") -> Self:
        """Return an xid that was never used: its global-id is `prefix` (up to 48 octets) and 16
        random ones.
        """
        return cls(format_id, prefix + uuid.uuid4().bytes, branch_id)

    def encode(self) -> bytes:
        return b"".join(
            (
                _FORMAT_ID.pack(self.format_id),
                bytes((len(self.global_id),)),
                self.global_id,
                bytes((len(self.branch_id),)),
                self.branch_id,
            )
        )

    @classmethod
    def decode_all(cls, encoded: bytes) -> list[Self]:
        """Decode consecutive xids, as in recover-ok.

        Raises: ValueError when they end in the middle, or one of them is not valid.
        """
        xids = []
        offset = 0
        while offset < len(encoded):
            if offset + _FORMAT_ID.size > len(encoded):
                raise ValueError(f"an xid ends in its format-id, at octet {len(encoded)}")
            (format_id,) = _FORMAT_ID.unpack_from(encoded, offset)
            global_id, offset = _octets(encoded, offset + _FORMAT_ID.size)
            branch_id, offset = _octets(encoded, offset)
            xids.append(cls(format_id, global_id, branch_id))
        return xids

    def __str__(self) -> str:
        return f"{self.format_id:#x}:{self.global_id.hex()}:{self.branch_id.hex()}"


def _octets(encoded: bytes, offset: int) -> tuple[bytes, int]:
    """Return the short octet string at `offset`, and where the next field starts."""
    end = offset + 1 + encoded[offset] if offset < len(encoded) else offset + 1
    if end > len(encoded):
        raise ValueError(f"an xid ends in the middle, at octet {len(encoded)}")
    return encoded[offset + 1 : end], end
