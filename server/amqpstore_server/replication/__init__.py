"""What makes a broker a member of a group: decisions of `amqpstore_server.cluster` carried out on
sockets, disks and etcd.

Nothing of this is imported by a single node.

- `settings`: what the configuration says about the cluster
"""
