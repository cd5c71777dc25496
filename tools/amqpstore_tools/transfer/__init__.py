"""Messages out of a store, as JSON Lines or msgpack, and back: into a store, or to a broker.

- `fields`, `properties`: AMQP's own encoding as plain values, and back, without losing a type.
- `lines`, `input`: what is in a file of exported messages, and how such a file is opened.
- `exporting`: from a store to a file; `importing`: into a store that no broker has open;
  `publishing`: to a broker.
"""
