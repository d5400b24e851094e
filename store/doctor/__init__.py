"""The store doctor: looks into a store directory, checks it, repairs it, offline.

It needs no running broker and no `MessageStore`: every module reads files with the codecs of the
store. Only `repair` writes. Apache's directories and ours are the same to it.
"""
