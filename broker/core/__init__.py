"""The store, replication and tables of a broker, put together: what its services stand on."""
