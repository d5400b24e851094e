"""The message index by key, unique key and tag. Derived data."""
