"""What operators do with a broker: the one set of functions behind every door for them.

- `operations`: list, set and delete users, virtual hosts, permissions and policies; import
  definitions; `exporting`: export them. `work`: how such work is carried out in steps.
- `requests`: the operations as requests in JSON; `framing`: their form on the admin socket.
"""
