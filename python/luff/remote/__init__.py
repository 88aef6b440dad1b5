"""Runs in a bucket: `luff sync` uploads a run while it trains, and every verb that reads a run takes its URL.

The format is docs/spec/bucket-format.md. A bucket holds a mirror of run directories. A mirror that was fetched again,
the spool, is a run directory that the readers in C++ open like any other; what is missing of its payload they ask the
fetcher for, a process that all readers of a user share.
"""
