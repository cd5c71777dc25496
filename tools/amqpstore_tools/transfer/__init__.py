"""Messages out of a store, as JSON Lines or msgpack, and back: into a store, or to a broker.

- `fields` and `properties`: AMQP's own encoding as plain values, and back, without losing a type;
- `lines`: what is in a file of exported messages; `exporting`, from a store to such a file;
- `importing`, from there into a store that no broker has open; `publishing`, to a broker.
"""
