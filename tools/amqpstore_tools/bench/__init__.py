"""A load generator for any AMQP 0-9-1 broker: `amqpstore bench WORKLOAD`.

The generator starts no broker and imports neither broker nor engine: it speaks the protocol itself,
in processes of its own, so its figures can be compared between brokers. It shares the machine with
the broker it measures, so it avoids work: publishes are encoded once and sent as blocks, and
deliveries are counted by length, not parsed one by one.

- `settings`, `options`: the options of each workload, checked; `routing`: what it declares on the
  broker; `workload`: its workers; `messages`: the publishes, encoded in advance.
- `fleet`, `measure`, `board`: the worker processes, the measured window, and their counters.
- `worker`: the task and the result of a worker; `producer`, `paced`, `batches`, `lockstep`,
  `connects`, `consumer`: the kinds of workers; `counting`: deliveries, counted without parsing.
- `server_process`: CPU time and memory of the broker, if it runs on this machine.
- `histogram`, `report`: percentiles, and the result.
"""
