"""The broker's counts, as totals, rates and samples over time.

The counters themselves are in the broker (`broker.counters`) and cost it a few additions for each
run of messages. This package reads them about once a second.

- `series`: samples of some counters over time, in rings that get coarser with age.
- `latencies`: how long syncs, confirms and deliveries have taken lately.
- `ranges`: what part of that a request asks for.
- `node`: what the node uses, and what it has done.
- `sampler`: takes the samples, in steps, within a budget of memory and of processor time.
- `volatile`: how many messages would be lost with the process, kept in a file for the next one.
- `counter_reports`: rates and samples as RabbitMQ's management API writes them.
- `statistics`: what there is to ask, for totals, virtual hosts, queues, exchanges, connections and
  channels.
"""
