"""Definitions of clients and operators: how they are checked, stored, changed and deleted.

- `accepted`: which arguments, policy keys and limits act, are taken with a note, or are refused.
- `exchange_definitions`, `binding_definitions`: exchanges and bindings are declared, removed, and
  restored; `notes`: what of a declaration has no effect.
- `rows`, `stored`: definitions in the catalog, and the check of what is found there.
- `policy_settings`: what queues and exchanges get from policies; `byte_limits`: limits of queues
  whose bytes are not counted yet.
- `global_parameters`: those of no virtual host; `restoring`: what a start finds in the store.
- `predeclared`: the exchanges of each virtual host; `owned_queues`: queues that go with a
  connection, or with their last consumer.
- `deletion`: what goes together; `removals`: what is left of deleted queues and exchanges.
"""
