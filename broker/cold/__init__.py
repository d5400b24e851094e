"""Reads of old log data: passed on to a follower, to keep the page cache of the leader."""
