"""The header of a content as clients send it: the broker passes on those that it has received."""

import struct


def encode_content_header(class_id: int, body_size: int, raw_properties: bytes) -> bytes:
    """Encode the payload of a content header frame; `raw_properties` comes from
    encode_properties.
    """
    return struct.pack(">HHQ", class_id, 0, body_size) + raw_properties
