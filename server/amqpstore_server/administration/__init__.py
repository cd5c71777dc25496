"""Operators' work with a broker: the one set of functions behind every door for them.

- `operations`: list, set and delete users and virtual hosts; import definitions; `permissions`,
  `policies`: the same for these; `changes`: how all of them change a broker; `exporting`: export
  definitions; `telling`: the events of all this. `work`: how such work is carried out in steps;
  `connected`: what they see of a connection.
- `parameters`: operator policies and limits as parameters of components; global parameters.
- `messages`: browse, move, copy, delete and replay the messages of a queue; `rendering`: messages
  in JSON; `tables`: their properties, and arguments; `provenance`: where one came from, and what
  became of it.
- `requests`, `message_requests`, `connection_requests`: the operations as requests in JSON;
  `request`: what all of them are; `framing`: their form on the admin socket; `large_json`: how JSON
  that may be large is decoded, on the socket and of HTTP.
- `admin_socket`: the door of these requests in the data directory.
- `definitions`, `importing`: RabbitMQ's definitions file, and how it is applied; `unread_fields`:
  fields of bodies and files that nothing reads.
- `first_users`: the users of a new store.
"""
