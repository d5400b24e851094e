"""The `cometmq` command: nouns, then verbs; and the loader of configuration files.

`main.py` loads a subcommand only when it is called, so that `cometmq up` has its children running
before anything heavy is imported. Exit codes (design, section 5): 0 done, 1 failed, 2 usage,
3 unhealthy, 4 not found, 5 a check found problems. Errors are sentences on stderr.
"""
