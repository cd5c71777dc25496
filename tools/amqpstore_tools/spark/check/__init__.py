"""`amqpstore check --engine spark`: the check of `amqpstore_tools.check`, spread over a cluster.

- `driver`: reads the catalog, says what there is to do, and puts the findings into the order in
  which the check of one process finds them.
- `tasks`: what a task does: one segment, some index files, or one account.
- `shared`: what a task is told of its store.
"""
