"""The storage engine: commit log, consume queues, flush, checkpoint, recovery.

Promises what `store/README.md` says and keeps the byte format of the RocketMQ 5 file store (store
format, sections 1-9). Synchronous, called from one thread, never waits; no network, no asyncio.
The face of the folder is `message_store.MessageStore`.
"""
