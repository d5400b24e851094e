"""SendMessage: checks, choice of the queue, and one append for all requests of a turn."""
