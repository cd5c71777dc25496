"""`amqpstore check`: a read-only verification of a store, whether it opens or not.

What is wrong becomes a finding, never an exception. FINDINGS.md has the codes.

- `check`: the whole check, from the marker to the last reference.
- `reading`: files on a failing disk; `catalog`: the catalog, row by row.
- `scanning`, `segments`: every record of every segment; `history`: the log that they form.
- `index`, `marks`: index files and tables of offsets; `prepared`: prepared transactions.
- `references`: what queues hold, compared with what segments contain.
- `findings`: the codes; `report`, `board`: findings and progress on the terminal.
"""
