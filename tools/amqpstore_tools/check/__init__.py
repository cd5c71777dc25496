"""`amqpstore check`: a read-only verification of a store, whether it opens or not.

What is wrong becomes a finding, never an exception. FINDINGS.md has the codes.

- `engine`: the whole check, from the marker to the last reference, as steps over parts.
- `store`: what comes before the segments are read; `parts`: what each step is told, and returns.
- `steps`: the steps, each over one part; `executor`: what runs them, this process or a cluster.
- `reading`: files on a failing disk; `catalog`: the catalog, row by row.
- `scanning`, `segments`: every record of every segment; `history`: the log that they form.
- `index`, `marks`: index files and tables of offsets; `prepared`: prepared transactions.
- `references`: what queues hold, compared with what segments contain.
- `findings`: the codes; `report`, `board`: findings and progress on the terminal.
"""
