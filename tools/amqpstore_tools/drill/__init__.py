"""The durability drill: a machine that loses power, and what must be true of the store after it.

From the disk upwards: `operations` (what a file system is asked to do), `memory_files` and
`memory_catalog` (a disk with a durable image under a volatile overlay), `trace` (what was done to
it, and what the outside was told meanwhile), `crash_images` (all that a power cut may leave),
`faulty_files` (calls that fail, bits that rot), `outside` and `random_history` (the publishers
and consumers), `ledger` (what they may count on), `observation` (what a recovered store holds),
`invariants` (the two held against each other), `explorer` (all of it, at every operation),
`moves` (transactions, at every operation).

On real files: `copying` (of a data directory, which is never written to), `damaged` (a copy for
each round), `examiner` (opens it, in a process of its own), `strangers` (files that are none of the
store's), `broker` and `client` (the real process, and who uses it).

`scenarios` are what `amqpstore drill` offers (`command`): each is a `run` with a seed, shown by
`board`, that ends in a `verdict` for each invariant, and all of them in a `report` and its `page`.
"""
