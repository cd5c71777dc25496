"""The event loop: reads from all clients, the work that follows, and the writes.

One policy decides who is served when. Six words tell it:

- *round*: reading once from each socket that is ready, and then doing once the work that those
  reads left: queues hand out messages, the open batch goes to the disk, output is sent.
- *busy*: a round is busy if its time for reading was over before all sockets had been read.
- *costly*: a client is costly if its last reads took much longer than ordinary reads of as many
  messages and bytes.
- *share*: the part of the time that one kind of work has while others are at work; it has all of
  the time while they are not.
- *budget*: the cost, in about microseconds, of what a round may do beyond handling bytes: searching
  for routes, putting messages in many queues, moving and dropping them.
- *hurry*: a task beside the loop is in a hurry while it has a request to answer, for which it needs
  many turns of trio's loop.

A round takes some milliseconds, because whoever writes during a round waits for its end. It reads
for 5 ms, each client once, and as much of each as is handled in 10 ms: reads of a client grow while
it fills them, and shrink when they take long. A read that has too many frames, or a method that
takes long, is continued in the next rounds. A round that brought one message ends at once, so that
the batch of a client that waits for its confirm starts at once.

Costly clients are read after all others, in small reads, and have a share of a tenth. Moving and
dropping messages has a share of a fifth, and as much in one round as the budget allows; the rest
waits for the next round. Of clients that leave in a crowd a few are read in each round, and those
that have connected are accepted after them.

While rounds are busy it counts how much is done in all: queues collect the messages of some rounds,
and other threads get the interpreter in longer intervals. Otherwise it counts how soon a client
gets its answer. The other tasks of trio run every 5 ms, or at once if one of them has something to
do; after each round, which is short then, while one of them is in a hurry. Garbage is collected
between rounds, a little at a time.

- `loop_limits`: the numbers of the policy. The budget is `broker.work.limits.BrokerLimits`.
- `sockets`: all clients' sockets in one selector; `tls`: TLS on one of them;
  `read_size`: how much is read from one at once.
- `socket_connection`: one client, from its accept to its end; `client_login`: its login;
  `client_reading`: its reads; `client_writing`: its writes; `client_tasks`: its tasks.
- `rounds`: one round after the other; `share`: how costly work shares the time
  with the rest; `committer`: batches are written and synced.
- `switching`, `garbage`: how soon the loop gets the interpreter back, and how short the pauses for
  Python's garbage are; `holds`: how long the longest rounds were.
- `ticks`: what is due twice a second; `alarms`: publishers wait while memory or the disk is short;
  `trimming`: memory is given back.
"""
