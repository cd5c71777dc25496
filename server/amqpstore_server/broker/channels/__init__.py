"""Channels: publish, get, ack and commit for one client.

- `channel`: one channel, in the order of its tags; `mode`: whether it confirms or commits;
  `unacked`: what its client may still ack; `outlet`: the way to the client.
- `consumer_events`: that a consumer was started, or has ended.
- `confirms`: publishes into queues, and their confirms; `gets`: those that may wait.
- `firehose`: copies of what is published and delivered; `event_messages`: events as messages;
  `own_publishes`: how both are published.
- `local_transaction`: the work that waits for a commit; `branches`: distributed transactions.
"""
