"""The archive: a store's history as Parquet that any tool reads, with each row exactly once.

    names.py      where things lie below the archive's folder
    manifest.py   the commit record of one unit of work, and how it is published
    rows.py       rows of messages, or records of a log, to files by topic and day
    row_file.py   one such Parquet file, and its digests
    places.py     where the records of a range lie, in the archive's order
    checksum.py   CRC-32 of many bytes
    splits.py     one range of a log into the archive
    coverage.py   which ranges of which broker are archived, and what is left to do
    checking.py   the archive compared with what the log says, before anything is deleted
    gate.py       telling the broker how far it may delete
    sink.py       the `rocketmq-archive` sink of Spark

Only `sink.py` knows Spark. (pipeline study, sections 2.4, 3 and 6)
"""
