"""The machinery that makes a broker a member of a group: decisions of `amqpstore_server.cluster`
carried out on sockets, disks and etcd.

Nothing of this is imported by a single node.

- `settings`: what the configuration says about the cluster
- `handshake`, `tls_streams`: how two members know each other, and TLS for two threads
- `links`, `listening`: connections of frames, and how they are accepted and made
- `kept_segments`: segments of the log that are kept for members that are away
- `member_log`: what a member knows of its own log, for all threads
- `member_file`: the file MEMBER, as its state machine reads and writes it
- `definitions`: definitions on their way to followers
- `disk_lane`: the thread that has a follower's store
- `companion`, `catching_up`: what a leader's log hands to followers, and what one that joins gets
- `copying`: what one gets that lacks more than the leader's log has
- `orders`: what the thread is to do that has a leader's store
- `controller`: has the state machine, and its effects carried out
- `leading_term`: a term that this member leads, as the broker sees it
- `proxy`: passes clients of a follower on; `proxy_header`: who they are; `proxied_clients`: how the
  leader accepts them
- `serving`: the process of a member
"""
