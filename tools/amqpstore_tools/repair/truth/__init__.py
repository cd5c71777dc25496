"""Finds what every queue holds: from index files, the log, and the readable part of the catalog.

The last checkpoint says which entries of the index files are live, and the log what was added and
removed after it. If a part of that is lost, the other sources are used:

- entries of an index file that is damaged are looked for in the log, from its start;
- the row's bitmap says which of them were acked, if the places of the entries are known, otherwise
  the accounts, which count how many queues hold each message;
- a sound ACK or PURGE in the log always counts;
- if no source says that a message was acked, it was not: rather delivered twice than never.
  Messages kept only for this reason are `again`, and flagged redelivered.

Sound messages whose queue is no longer known go to a queue of their own. The stages, in order:

- `finding`, `values`, `holders`: the stages one by one, what they hand on, and who holds a message.
- `trust`: where the last checkpoint was, and what is whole.
- `naming`: which queues exist.
- `indexed`, `holes`: the entries of index files, and what fills in for lost ones.
- `logged`: what the log adds and removes.
- `totals`: numbers, losses, and messages without a queue.
- `given_up`: the numbers of what was not found, for when it is put back.
"""
