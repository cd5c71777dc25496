"""The tag of each frame, by which members without TLS know that it is the peer's next one.

Each direction of each connection has a key of its own, made of the group's secret and the nonces of
both members. A frame's number in its direction is counted from 1 on, and written in 12 bytes, most
significant byte first; its head is what comes before its content.

- A frame with at most 4,096 bytes of content: BLAKE2b of 16 bytes over the number, the head and the
  content. Its key is the HMAC-SHA-256 of `small` under the key of the direction.
- A larger one: the tag of AES-256-GCM with the number as the nonce, the head as the plaintext, and
  the content as the additional data. What the head is encrypted to is not sent. Its key is the
  HMAC-SHA-256 of `large` under the key of the direction.

So a frame that was made up, changed, left out, repeated, moved, or taken from another connection
does not have the tag that is due. Frames are not encrypted by this. With certificates there are no
tags: TLS does the same, and encrypts.

Two ways, as each is the cheaper one: of 16 KiB, BLAKE2b takes 23 us and AES-GCM 1.5 us; but where a
message comes alone, and little of either is in the processor's caches, BLAKE2b takes about 3 us and
AES-GCM 12 us, at each end. (An HMAC-SHA-256 takes 10 us for 16 KiB, and gives other threads the
interpreter meanwhile.) For AES-GCM the parts are not joined: copying a large batch would take
longer than its tag.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES = 16
SMALL_BYTES = 4096
_NUMBER_BYTES = 12


class FrameTags:
    """The tags of the frames of one direction of one connection, in their order."""

    def __init__(self, key: bytes) -> None:
        small, large = (hmac.digest(key, use, "sha256") for use in (b"small", b"large"))
        self._begin = blake2b(key=small, digest_size=TAG_BYTES)
        self._encrypt = AESGCM(large).encrypt
        self._number = 0

    def next(self, head: bytes, content: bytes) -> bytes:
        """Return the tag of the next frame. Args: head, what comes before its content."""
        self._number += 1
        number = self._number.to_bytes(_NUMBER_BYTES, "big")
        if len(content) > SMALL_BYTES:
            return self._encrypt(number, head, content)[-TAG_BYTES:]
        tag = self._begin.copy()
        tag.update(number + head + content)
        return tag.digest()

    def is_next(self, tag: bytes | bytearray, head: bytes, content: bytes) -> bool:
        """Tell whether this is the tag of the next frame."""
        return hmac.compare_digest(tag, self.next(head, content))
