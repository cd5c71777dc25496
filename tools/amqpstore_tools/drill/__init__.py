"""The durability drill: a machine that loses power, and the invariants of the store after it.

- `scenarios`: the scenarios of `amqpstore drill`; `run`: one run of one scenario, with its seed.
- `board`, `verdict`, `report`, `page`: progress, the verdict on each invariant, and the results.

On a simulated disk:

- `payloads`, `trace`, `outside`, `random_history`: a recorded history of publishers and consumers.
- `promises`, `observation`, `invariants`: what they were promised, what a recovered store holds,
  and the comparison of the two; `accounting`: compares the accounts of the store with a recount.
- `explorer`, `prover`, `moves`: a power cut at every operation, and the checks after it.
- `loading`: a copy of a data directory on a simulated disk.

On real files:

- `copying`, `damaged`, `unknown_files`: copies of a data directory, their damage, and unknown files
  in them; `examiner`: opens a damaged copy in a process of its own; `manual`: what the manual says
  to do with it, and what comes out of that.
- `own_disk`, `loop_disk`, `syncing`: whether a sync is one, a file system whose power is cut, and
  the program that relies on it.
- `broker`, `client`: the real process and its clients; `group`: three of them, and an etcd;
  `returns`: members and an etcd that come back older than they were.
"""
