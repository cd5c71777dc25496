"""`amqpstore check --engine spark`: the check of `amqpstore_tools.check`, spread over a cluster.

`driver` looks at the catalog and says what there is to do; `tasks` reads one segment, or some index
files, and holds an account against what queues hold of it, all by the code of `check`;
`shared` is what a task is told of its store. What they find is put together in the order in which
the check of one process finds it.
"""
