"""The released Apache broker, started from its published jars, as an oracle for stores."""
