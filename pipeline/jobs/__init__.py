"""The jobs of the pipeline: plain functions of a Spark session that return a `Report`.

    archive.py    a log's ranges to Parquet, then how far the broker may delete
    replay.py     archive or store back into a topic
    verify.py     checksums, structure, and whether queues and log agree
    rebuild.py    queues and index made again, in a side directory
    reconcile.py  one store beside another, or beside an archive
    dlq.py        what lies in dead letter topics, and sending some of it again
    insights.py   rates, sizes, latencies, lag, hot keys, skew
    compact.py    latest message of every key; many small files into few

Work on log ranges runs as one Spark task a range (`running.run_parts`), with functions that know no Spark.
"""
