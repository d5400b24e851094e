"""How tests start Java virtual machines: for programs that run seconds, on few cores.

Most of such a program's CPU would be the optimizing compiler (C2) and the threads of the garbage
collector: the first compiler alone and a serial collector need half of it.
"""

import os

OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
#: Starts a client program.
JAVA = ("java", "-Xmx256m", *OPTIONS)


def install() -> None:
    """Start the machines of Spark and of Maven in this way, too."""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "MAVEN_OPTS"):
        os.environ.setdefault(name, " ".join(OPTIONS))
