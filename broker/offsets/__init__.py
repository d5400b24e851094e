"""Consumer offsets: the table, its files and offsets of broadcast consumers."""
