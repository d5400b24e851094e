"""FIFO groups: queue locks and the order of queues."""
