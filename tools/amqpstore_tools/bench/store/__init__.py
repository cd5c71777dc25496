"""The engine's own benchmark: `amqpstore bench store WORKLOAD`, without sockets.

From the outside in: `settings` reads the command line; `run` makes jobs of a workload; `process`
runs a job in a fresh interpreter, whose memory and starting time are nobody else's (`child`);
`jobs` has the loops, with `commits` to make batches durable and `watch` to look at disk, memory
and background work; `report` prints. Only what runs in that interpreter imports the engine.
"""
