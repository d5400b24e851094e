"""The access point alone, in front of any number of groups: config, cluster, owners, routes, telemetry, server."""
