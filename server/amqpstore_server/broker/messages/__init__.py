"""What the broker reads of a message, and writes into one that has died.

- `envelope`: what it knows of a message beside the body, such as routing keys and priority.
- `deaths`: the headers that say which queues a message left without a consumer, and why.
"""
