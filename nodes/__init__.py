"""How nodes reach and recognize each other: addresses, certificates, links, names of settings."""
