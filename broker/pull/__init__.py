"""PullMessage, and reads of records that are no longer in memory."""
