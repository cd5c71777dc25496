"""Jobs on Spark, as verbs of the `amqpstore` command.

`cluster` is where Spark comes in: it spreads work over executors and says how far it is. What a
task does is in modules that know nothing of Spark, so that it can be run and tested without it.

- `check/`: the check of a store, its segments and index files looked at apart; `files`, what a task
  opens of a store that a broker runs on.
- `archive/`: the log as Parquet files, published again, and asked what a queue held.
- `drill`: the rounds of a drill. `report/`: a store as a page with pictures.
"""
