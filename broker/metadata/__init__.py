"""Topics and groups: tables, their records in the log, their files."""
