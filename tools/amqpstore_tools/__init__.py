"""The `amqpstore` command, its pytest plug-in, and its Spark data source.

- `verbs`: the verbs of the command, one module each. The other packages are libraries for them.
- `administration`: asks a running broker, or the store of a stopped one, what operators want.
- `cluster`: the members of a group of replicas, and its keys in etcd.
- `offline`, `inspect`: read a store that no broker has open, or a snapshot.
- `check`, `repair`, `drill`: find damage, repair it, and prove that the engine survives faults.
- `copying`, `transfer`: copies of stores; messages to and from files.
- `client`, `bench`: an AMQP client, and the load generator on top of it.
- `simulation`, `testing`: a disk that loses power, and the pytest plug-in on top of it.
- `pika`: distributed transactions for pika.
- `spark`, `archive`, `report`: stores as data frames, and the jobs that use them.
- `compare`: runs the load generator on several brokers by turns.
"""
