"""What many runs cost: each figure beside its limit.

usage: ./dev bench scale [PART ...] [--json FILE]

catalogue: `luff runs` over 10,000 runs whose index is kept, and the question alone, by SQLite in that index.
watch: `luff watch DIR` over 500 live runs, written by another process through the real writer: CPU time, memory, lag,
whether each finding is said once, and how long the process takes to leave. Runs of the benchmark record losses and
statistics of weights and gradients, and no samples or facts of a framework, for which some rules have less to do.
bucket: `luff watch URL` over 500 live runs of a bucket, which two other processes upload: the same, requests, and how
soon another host judges them all when this one is killed. A folder is the bucket: what a network adds is not in it.
stop: from the faulty step of a job to its raised stop, where `luff watch URL` sees it through a bucket, and answers by
a signed request: 100 stops, some at once; 40 more through an S3 server on loopback.
jobs: 10,000 jobs by simulation, and 100 and 1,000 for a line beside them: short runs of the real writer, 16 shards of
`luff watch DIR` one after the other, uploads and looks at cards through a store in memory that counts requests.

CPU time is of the process that is measured, by rusage. Lag is by the clock: load on the machine adds to it.
"""

from __future__ import annotations

import sys

from _gates import run_parts

if __name__ == "__main__":
    sys.exit(run_parts(__doc__, ("catalogue", "watch", "bucket", "stop", "jobs"), "_scale"))
