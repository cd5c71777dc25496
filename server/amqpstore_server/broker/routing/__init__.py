"""From an exchange to queues, and who may send a message on that way.

- `routing`: over bindings and alternate exchanges; `explaining`: why a message would go there.
- `publish_rights`: who may publish what, by whatever road it comes.
"""
