"""The `cometmq` command: a folder or module for each noun, and the loader of configuration files.

`main.py` imports a subcommand only when it is called, so that `cometmq up` starts its children
before heavy modules are imported. Exit codes: 0 done, 1 failed, 2 usage, 3 unhealthy, 4 not found,
5 a check found problems. Errors are sentences on stderr.
"""
