"""The main file of a pipeline job for spark-submit.

    spark-submit --master URL --archives env.tar.gz#environment \\
        --conf spark.pyspark.python=./environment/bin/python PATH/submit.py archive STORE ARCHIVE

The arguments are those of `cometmq pipeline`; master and memory are spark-submit's. `cometmq
pipeline pack` prints the path of this file. Python puts the folder of a main file first in
`sys.path`, where modules named `store` and `message` would be found, so it is removed.
"""

import importlib
import sys

if __name__ == "__main__":
    del sys.path[0]
    sys.argv[1:1] = ["pipeline"]
    importlib.import_module("cometmq.cli.main").main()
