"""Retention, full disks, removal of queues, topics and groups; progress and status."""
