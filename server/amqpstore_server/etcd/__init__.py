"""A client of etcd, which carries out what a member of a group asks of it.

It speaks to the JSON gateway of etcd 3.4 and newer with `urllib3`, in threads with blocking
sockets: a busy event loop must not cost leadership. Nothing of this is imported by a single node.

- `errors`: what may be wrong with an endpoint, its answer, or all of etcd
- `settings`: where etcd is, and who this is
- `messages`: requests and answers as JSON, without sockets; `values`: what the keys must hold
- `host_addresses`: looking up the host of an endpoint, with a time limit
- `endpoint`: one address: requests with a deadline, answers of a limited size
- `identity`: whether it still is the etcd that it was
- `client`: the requests, to the first endpoint that answers
- `lanes`: threads that carry out one thing after the other
- `watching`: reads the keys when they have changed
- `presence`: the key that shows that a member runs
- `driver`: carries out the effects of `amqpstore_server.cluster`
"""
