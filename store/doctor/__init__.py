"""The store doctor: inspects, checks and repairs a store directory, offline.

It needs no running broker and no `MessageStore`: all modules read files with the codecs of the
store. Only `repair` writes. Directories of Apache's brokers and of this one are treated alike.
"""
