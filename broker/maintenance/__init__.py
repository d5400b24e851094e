"""Periodic work on the store: retention, disk pressure and removal of unused queues."""
