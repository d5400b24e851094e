"""Archive: a store's history as Parquet files, with each row exactly once.

names.py          paths below the archive's folder
settings.py       settings of an archive, writer lock
manifest.py       commit record of one unit of work, and its publication
rows.py           writes rows or records to files by topic and day
row_file.py       one Parquet file and its digests
record_order.py   sorts the records of a range
checksum.py       CRC-32 of large amounts of data
planning.py       ranges of a store to archive
splits.py         archives one range of a log
coverage.py       archived ranges of a broker, and those left to do
checking.py       compares the archive with its records and the log
reading.py        reads rows by topic, time, broker and queue
gate.py           reads and sets the broker's archive watermark
sink.py           the `rocketmq-archive` sink; only this module uses Spark
"""
