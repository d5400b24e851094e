"""FIFO groups: queue locks, their file and the order of queues."""
