"""Access control of the client port: the right that each method needs, and its check."""
