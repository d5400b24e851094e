"""Jobs of the pipeline: functions of a Spark session that return a `Report`.

    archive.py    archive a log as Parquet and advance the broker's archive watermark
    replay.py     send messages of an archive or store to a topic
    verify.py     verify records, checksums and consume queues of a store
    rebuild.py    rebuild consume queues and index in another directory
    reconcile.py  compare a store with another store or an archive
    dlq.py        report dead letters and send them again
    insights.py   rates, sizes, latencies, lag, hot keys, skew
    compact.py    merge small archive files; latest message of every key

A range of a log is one Spark task (`running.run_parts`); the task functions do not use Spark.
"""
