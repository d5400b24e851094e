"""Consume queues: units per topic and queue that point into the commit log. Derived data."""
