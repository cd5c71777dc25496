"""`amqpstore check`: a read-only verification of a store, whether it opens or not.

Every fault becomes a finding, never an exception. FINDINGS.md has the codes.

- `engine`: the whole check, from the marker to the last reference, as steps over parts.
- `store`: the steps before segments are read; `jobs`: arguments and results of each step.
- `steps`: the steps, each over one part; `executor`: runs them, in this process or on a cluster.
- `reading`: files on a failing disk; `catalog`: the catalog, row by row.
- `scanning`, `segments`: every record of every segment; `history`: the log as a whole;
  `shortfall`: what is missing in it.
- `index`, `offset_tables`: index files and offset tables; `prepared`: prepared transactions.
- `references`: what queues hold, compared with what segments contain.
- `findings`: the codes; `report`: findings on the terminal.
"""
