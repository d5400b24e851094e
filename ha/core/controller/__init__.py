"""Group controller: elections, in-sync set changes and operator commands. Pure."""
