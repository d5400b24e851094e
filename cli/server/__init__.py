"""The server processes: `cometmq namesrv`, `broker`, `single` and `proxy`."""
