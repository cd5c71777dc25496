"""A load generator for any AMQP 0-9-1 broker: `amqpstore bench WORKLOAD`.

The generator starts no broker and imports none of ours: it speaks the protocol itself, in
processes of its own, so its figures can be compared between brokers. It shares the machine with
what it measures, so it avoids work: publishes are encoded once and sent as blocks, and
deliveries are counted by length, not parsed one by one (see `counting`).

A run, from the outside in: `command` reads the command line into `settings`; `workload` declares
queues and says which workers a workload needs; `fleet` runs them as processes and samples their
counters on the shared `board`; a worker is a `producer`, a `consumer`, a `lockstep` or a
`connects`; they speak through `connection`, which encodes with `wire`; `report` prints.

`bench store` is apart from all this: see `store`.
"""
