"""Messages out of a store, as JSON Lines or msgpack, and back: into a store, or to a broker.

- `fields`, `properties`: convert AMQP's encoding to plain values, and back, without losing types;
  `shapes`: properties like others before them, as JSON in fewer steps.
- `lines`, `input`: the content of a file of exported messages, and opening such a file.
- `exporting`: from a store to a file; `importing`: into a store that no broker has open;
  `publishing`, `broker_options`: to a broker, and the options for that.
"""
