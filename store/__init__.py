"""The storage engine: commit log, consume queues, flush, checkpoint, recovery.

Its guarantees are in `store/README.md`; the byte format is that of the RocketMQ 5 file store
(docs/formats/store-format.md). Synchronous: called from one thread, never waits, without network
and asyncio. The entry point is `message_store.MessageStore`.
"""
