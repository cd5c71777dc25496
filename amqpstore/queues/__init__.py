"""The queues of a store: their ready and unacked messages, in memory and on disk.

- `queue`: one queue, as the store knows it; `arguments`: checks of what a caller passes.
- `enqueue`, `withdrawals`, `acks`: how messages enter, leave and come back.
- `expiry`, `body_sizes`: when messages expire, and how large they are.
- `memory`, `unacked`: which messages stay in memory; `transient`: where those go that are not
  durable and must leave it; `disposal`: unused memory, freed a piece at a time.
- `stored_runs`, `body_reader`: reads of messages from disk; `paging`: of index files; `browsing`:
  reads that leave the messages where they are.
- `run_sizes`: how large bodies are, by the cheapest way that knows.
- `quarantine`, `rereading`: what cannot be read, and when it is tried again.
"""
