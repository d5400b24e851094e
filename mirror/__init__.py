"""The mirror: copies topics of a running cluster to another one over the remoting protocol, with
the offsets of consumer groups. See docs/migration.md."""
