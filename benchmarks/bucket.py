"""What a run in a bucket costs: the training beside its upload, the upload, and the reader. `./dev bench bucket`.

An S3 server (moto) in a process of its own, and a proxy that counts requests and bytes in between; not for the
training, in whose process that proxy is. Blocks of the training with and without an upload alternate in one process, on
one core with the upload (CPU time of both counts) and with a core to spare.

    ./dev bench bucket [--only PART,…] [--seconds N] [--pairs N] [--programs N] [--json FILE]

Parts: upload; fast: the same with more values than travel in heads; values, rows, training; findings: those of
programs of the fault bench that are recorded under `--rules later`, judged live from the bucket, after their end from
the bucket, and beside the training, are compared byte by byte.

Exit code: 0 if every gate holds, 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _gates import Measured, luff_command
from _pairs import keep_memory

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("LUFF_BENCH_ROOT") or Path(__file__).resolve().parents[1])
sys.path.insert(0, str(ROOT / "python" / "tests" / "remote"))
TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(int(field) for field in fields[11:15]) / TICK


def start_sync(run: Path, url: str, cores: set[int] | None = None) -> subprocess.Popen[bytes]:
    """Starts an upload as `luff run --sync` does; on these cores, else on those of this thread."""
    import luff.remote

    start = Path(luff.remote.__file__).parents[1] / "_verbs" / "_start.py"
    words = [sys.executable, "-I", str(start), "sync", "--until-closed", str(run), url]
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    if cores:
        os.sched_setaffinity(process.pid, cores)  # before it has threads
    return process


def upload(
    base: str, proxy: Any, seconds: float, folder: Path, payload_rate: float = 500_000
) -> dict[str, float]:
    """Uploads 50 KB/s of metadata, and payload of so many bytes a second, and follows them."""
    from conftest import Run
    from luff.remote._cache import Cache
    from luff.remote._errors import BucketError
    from luff.remote._head import parse_head_untrusted
    from luff.remote._spool import Spool
    from luff.remote._store import open_store

    folder.mkdir(exist_ok=True)
    run, draw = Run(folder / "run"), random.Random(0)
    written = {"m": 0, "d": 0}
    lengths: list[tuple[float, int]] = []  # when the metadata had which length

    def write() -> None:
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < seconds:
            # What is due, also where this thread was late: a rate that is lower is another one.
            payload = round(payload_rate * passed) - written["d"]
            units = (round(50e3 * passed) - written["m"]) // 16
            # Rows compress as those of real runs do (2.2 to 4.1 times): half of the bytes are noise.
            for name, data in (
                ("d-000001.lfd", draw.randbytes(max(0, payload))),
                ("m-000001.lfm", b"".join(draw.randbytes(8) + bytes(8) for _ in range(units))),
            ):
                run.append(f"w0000/{name}", data)
                written[name[0]] += len(data)
            lengths.append((time.monotonic(), written["m"]))
            time.sleep(0.1)

    in_heads = {"payload": 0}  # bytes, which are only stored there

    def saw(method: str, path: str, body: bytes) -> None:
        if method == "PUT" and "/live/" in path:
            _, tails = parse_head_untrusted(body)
            in_heads["payload"] += sum(len(tail) for file, tail in tails.items() if file.is_payload)

    run.append("w0000/m-000001.lfm", b"x")
    written["m"] += 1
    proxy.requests.clear()
    proxy.saw = saw
    sync = start_sync(run.path, base)
    writer = threading.Thread(target=write)
    begun = time.monotonic()
    writer.start()
    lags: list[float] = []
    seen, begun_with, flushing_at = 0, 0, 0.0
    pool = ThreadPoolExecutor(4)
    store = open_store(base)
    spool = Spool(str(folder / "copy"), f"{base}/{run.run_id}", store, run.run_id, "/x", Cache(1 << 30), pool)
    segment = folder / "copy" / "w0000" / "m-000001.lfm"
    while writer.is_alive():
        time.sleep(1.0)
        try:
            spool.open()
        except BucketError:
            continue
        if not segment.exists():  # the first head has nothing yet
            continue
        if not flushing_at:  # what begins an upload is once in a job
            begun_with, flushing_at = sum(r[0] == "PUT" for r in proxy.requests), time.monotonic()
        now, length = time.monotonic(), segment.stat().st_size
        lags += [now - when for when, upto in lengths if seen < upto <= length]
        seen = length
    took = time.monotonic() - begun
    cpu = cpu_s(sync.pid)
    status = Path(f"/proc/{sync.pid}/status").read_text()
    rss = int(status.split("VmHWM:")[1].split()[0]) / 1024
    puts = [r for r in proxy.requests if r[0] == "PUT"]
    rate = (len(puts) - begun_with) / (time.monotonic() - flushing_at) * 60

    payload = in_heads["payload"] + sum(r[2] for r in puts if ".lfd/" in r[1])
    rest = sum(r[2] for r in puts) - payload
    assert sync.stdin is not None
    sync.stdin.close()
    sync.wait(120)
    proxy.saw = None
    # All of it is there.
    payload = in_heads["payload"] + sum(r[2] for r in proxy.requests if r[0] == "PUT" and ".lfd/" in r[1])
    lags.sort()
    return {
        "cpu_share": cpu / took,
        "memory_mb": rss,
        "puts_a_minute": rate,
        "puts_to_begin": begun_with,
        "metadata_put_per_written": rest / written["m"],
        "payload_put_per_written": payload / written["d"],
        "lag_p50_s": statistics.median(lags),
        "lag_p99_s": lags[int(len(lags) * 0.99)],
    }


def reading(base: str, proxy: Any, folder: Path) -> dict[str, float]:
    """Opens a run and reads values twice."""
    from conftest import Run
    from luff.remote._cache import Cache
    from luff.remote._files import File
    from luff.remote._spool import Spool
    from luff.remote._store import open_store
    from luff.remote._uploader import Uploader

    run, draw = Run(folder / "read"), random.Random(1)
    run.append("w0000/m-000001.lfm", draw.randbytes(100_000))
    run.append("w0000/d-000001.lfd", draw.randbytes(40 << 20))
    uploader = Uploader(str(run.path), open_store(base))
    uploader.begin()
    uploader.flush("ended")
    while uploader.behind:
        uploader.flush("ended")
    store = open_store(base)
    pool = ThreadPoolExecutor(4)
    spool = Spool(
        str(folder / "again"), f"{base}/{run.run_id}", store, run.run_id, "/x", Cache(1 << 30), pool
    )
    spool.open()
    proxy.requests.clear()
    for _ in range(2):
        first = len(proxy.requests)
        for step in range(2000):  # a value of 64 bytes every 20 KB
            spool.need(File("w", 0, "d", 1), step * 20_000, 128)
        again = len(proxy.requests) - first
    received = sum(r[3] for r in proxy.requests)
    return {
        "values_requests": first,
        "values_mb": received / 1e6,
        "values_again_requests": again,
    }


def rows(base: str, proxy: Any, folder: Path) -> dict[str, float]:
    """Opens a run of a million records, 100 tensors in 10,000 steps, and reads the series of one, then again."""
    import luff
    from luff.remote._store import open_store
    from luff.remote._uploader import Uploader

    run = folder / "million"
    words = [f"{os.environ['LUFF_BENCH_PROGRAMS']}/luff_bench_store", run, "100", "10000", "0"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    uploader = Uploader(str(run), open_store(base))
    uploader.begin()
    uploader.flush("ended")
    uploader.end()
    os.environ["LUFF_CACHE"] = str(folder / "cache")

    def counted(what: Any) -> tuple[Any, int, float]:
        proxy.requests.clear()
        result = what()
        return result, len(proxy.requests), sum(r[3] for r in proxy.requests)

    trial, opened, opened_bytes = counted(lambda: luff.open_trial(f"{base}/{uploader.run_id}"))
    with trial:
        name = trial.tensors()[50]
        series, asked, asked_bytes = counted(lambda: trial.tensor(name).summaries())
        assert len(series["l2"]) == 10_000
        with luff.open_trial(run) as here:  # nothing is measured that is not right
            assert (here.tensor(name).summaries()["l2"] == series["l2"]).all()
        _, again, _ = counted(lambda: trial.tensor(name).summaries())
    return {
        "open_requests": opened,
        "open_mib": opened_bytes / 2**20,
        "series_requests": asked,
        "series_mb": asked_bytes / 1e6,
        "series_again_requests": again,
    }


def process_s(pid: int) -> float:
    """CPU seconds of a live process, of all its threads, to the nanosecond. Those of its children: `children_s`."""
    return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of a process, as clock_getcpuclockid makes it


def children_s(pid: int) -> float:
    """CPU seconds of the children that a process has waited for: of an upload, what makes cards."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(int(field) for field in fields[13:15]) / TICK


def interval(values: list[float]) -> Measured:
    """The median, and its interval of 99 % by order statistics: it is looked at several times."""
    ordered = sorted(values)
    cut = max(0, int(len(ordered) / 2 - 1.3 * len(ordered) ** 0.5))
    return Measured(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def decided(value: Measured, limit: float) -> bool:
    """Whether the whole interval is on one side of the limit."""
    return value.high <= limit or value.low > limit


def pin(cores: set[int], all_threads: bool) -> None:
    """Puts this thread, or all of this process, onto cores. What it starts from now on comes onto them, too."""
    for thread in os.listdir("/proc/self/task") if all_threads else ["0"]:
        os.sched_setaffinity(int(thread), cores)


def training(base: str, pairs: int, folder: Path) -> dict[str, float]:
    """Steps with an upload that runs, in turns with steps while it is stopped (SIGSTOP), an eighth of a second each.

    A pair is ten turns of each, in the order of running, stopped, stopped, running, so a machine that grows faster or
    slower within seconds moves nothing. An upload each 2 s falls into the half of a pair in which it runs, and puts
    what was recorded in both, so steps have twice as much of it beside them as in a job. Pairs are added until the
    interval of the median is on one side of the gate, at most `pairs`.

    Returns
    -------
        Of each kind the median ratio, and the upper end of its interval, which the gate is about. Step time: the mean
        of a block, this thread on a core of its own, all else where the system puts it. CPU time: of a step, with that
        of the upload and of its children in proportion, everything on one core.
    """
    import luff.torch
    import torch
    from torch import nn

    torch.set_num_threads(1)
    keep_memory()
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hook = luff.torch.attach(model, optimizer=optimizer, run=folder / "trained")
    x, y = torch.randn(512, 256), torch.randint(0, 10, (512,))  # 60 steps/s on one core: 90 KB/s are recorded

    def block(seconds: float) -> tuple[float, float, int]:
        """Seconds, CPU seconds, and steps."""
        steps, begun, cpu = 0, time.perf_counter(), time.process_time()
        while (now := time.perf_counter()) - begun < seconds:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        return now - begun, time.process_time() - cpu, steps

    def measure(what: str, limit: float, on_one: bool) -> tuple[Measured, int]:
        sync = start_sync(folder / "trained", base, {min(everything)} if on_one else everything)
        try:
            block(8.0)  # its interpreter starts, and the first head goes up; that is once in a job
            ratios: list[float] = []
            used = over = 0.0
            children = children_s(sync.pid)
            while len(ratios) < pairs:
                spent = {True: (0.0, 0), False: (0.0, 0)}  # whether the upload runs: seconds, steps
                cpu = process_s(sync.pid)
                for turn in range(20):
                    runs = turn % 4 in (0, 3)
                    sync.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
                    *times, steps = block(0.125)
                    spent[runs] = (spent[runs][0] + times[on_one], spent[runs][1] + steps)
                    over += times[0]
                used += process_s(sync.pid) - cpu
                beside, alone = (spent[runs][0] / spent[runs][1] for runs in (True, False))
                ratios.append(beside / alone)
                share = (used + children_s(sync.pid) - children) / over if on_one else 0.0
                found = interval([ratio * (1 + share) for ratio in ratios])
                if len(ratios) % 20 == 0:
                    print(
                        f"{what}: {found.median:.4f} [{found.low:.4f}, {found.high:.4f}], {len(ratios)} pairs; upload "
                        f"{used / over:.2%} of a core; load {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
                    if decided(found, limit):
                        break
            return found, len(ratios)
        finally:
            sync.kill()
            sync.wait()

    everything = os.sched_getaffinity(0)
    block(3.0)
    found: dict[str, float] = {}
    for what, on_one in (("step time, spare core", False), ("CPU time, one core", True)):
        limit = GATES[f"{what}, at most"]
        pin({min(everything)}, all_threads=on_one)
        of, count = measure(what, limit, on_one)
        pin(everything, all_threads=True)
        found[what], found[f"{what}, at most"] = of.median, of.high
        if not decided(of, limit):
            print(f"{what}: undecided after {count} pairs: the machine is not quiet enough", flush=True)
    hook.close()
    return found


def judged(base: str, folder: Path, programs: int) -> dict[str, float]:
    """Findings of programs of the fault bench: live by `luff watch URL`, after the end by `luff check URL`, and by
    `luff check RUN` beside the training. Their JSON lines must be the same bytes.
    """
    from faultbench.programs import RUNS
    from luff.remote._commits import read_commit
    from luff.remote._store import open_store

    chosen = list(RUNS)[:: max(1, len(RUNS) // programs)][:programs]
    luff, store = luff_command(), open_store(base)
    env = os.environ | {"LUFF_CACHE": str(folder / "cache"), "LUFF_PYTHON": sys.executable}
    env |= {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    env |= {"OMP_NUM_THREADS": "1"}
    store.put_new("judges/luff", b"{}")  # all runs from now on are judged
    watch_words = [luff, "watch", base, "--state", folder / "state"]

    def quiet(words: list[Any]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)

    def train(program: str) -> None:
        words = [luff, "run", "--rules", "later", "--run", folder / program, "--sync", base, "--"]
        quiet([*words, sys.executable, "-m", "faultbench.run", program, "--seed", "0"]).wait()
        print(f"{program} has trained", flush=True)

    def check(place: str) -> list[str]:
        done = subprocess.run(
            [luff, "check", place, "--json"], capture_output=True, text=True, env=env, check=False
        )
        assert done.returncode in (0, 1, 3), done.stderr
        return done.stdout.splitlines()

    watch = quiet(watch_words)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, chosen))
    watch.send_signal(signal.SIGTERM)
    assert watch.wait(60) == 0
    assert quiet([*watch_words, "--drain"]).wait(600) == 0
    found = {
        "findings_programs": 0,
        "findings_lines": 0,
        "findings_live_differ": 0,
        "findings_after_differ": 0,
    }
    for program in chosen:
        run_id = json.loads((folder / program / "run.json").read_text())["run_id"]
        here, after = check(str(folder / program)), check(f"{base}/{run_id}")
        live: list[str] = []
        number = 1
        while (commit := read_commit(store, run_id, number)) is not None:
            live += commit.lines
            number += 1
        found["findings_programs"] += 1
        found["findings_lines"] += len(here)
        found["findings_live_differ"] += live != here
        found["findings_after_differ"] += after != here
        print(f"{program}: {len(here)} lines, live {live == here}, after {after == here}", flush=True)
    return {name: float(value) for name, value in found.items()}


FAST_RATE = 550_000
PARTS = ("upload", "fast", "values", "rows", "findings", "training")
#: Value, limit. docs/buckets.md tells which of them are not met, and why.
GATES = {
    "cpu_share": 0.01,
    "memory_mb": 96,
    "puts_a_minute": 55,
    "metadata_put_per_written": 1.2,
    "payload_put_per_written": 2.1,
    "fast_payload_put_per_written": 1.1,
    "lag_p50_s": 2.5,
    "lag_p99_s": 5.0,
    "open_requests": 3,
    "open_mib": 2.0,
    "series_requests": 12,
    "series_mb": 1.2,
    "series_again_requests": 0,
    "values_again_requests": 0,
    "findings_live_differ": 0,
    "findings_after_differ": 0,
    "step time, spare core, at most": 1.005,
    "CPU time, one core, at most": 1.02,
}


def main() -> int:
    """Measures, prints and judges."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=200, help="most blocks of training with an upload (200)")
    parser.add_argument("--programs", type=int, default=20, help="of the fault bench, for findings (20)")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, with commas")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if unknown := [part for part in wanted if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}")
    import boto3
    from conftest import ACCESS, Proxy
    from s3_server import SERVER

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        try:
            endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
            proxy = Proxy(endpoint)
            os.environ.update(ACCESS | {"AWS_ENDPOINT_URL": proxy.endpoint})
            boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1").create_bucket(Bucket="luff")
            folder, base = Path(name), "s3://luff/bench"
            found: dict[str, float] = {}
            if "upload" in wanted:
                found |= upload(base, proxy, arguments.seconds, folder / "upload")
            if "fast" in wanted:  # just above what may travel in heads: parts are the shortest there
                fast = upload(base, proxy, arguments.seconds, folder / "fast", FAST_RATE)
                found |= {f"fast_{name}": fast[name] for name in ("payload_put_per_written", "puts_a_minute")}
            if "values" in wanted:
                found |= reading(base, proxy, folder)
            if "rows" in wanted:
                found |= rows(base, proxy, folder)
            if "findings" in wanted:
                found |= judged(f"{base}-judged", folder, arguments.programs)
            if "training" in wanted:
                os.environ["AWS_ENDPOINT_URL"] = endpoint
                os.sched_setaffinity(server.pid, {max(os.sched_getaffinity(0))})  # it is elsewhere in a job
                found |= training(base, arguments.pairs, folder)
            proxy.close()
        finally:
            server.kill()
    good = True
    for key, value in found.items():
        limit = GATES.get(key)
        verdict = "" if limit is None else f"  (gate {limit:g}: {'ok' if value <= limit else 'MISSED'})"
        good = good and (limit is None or value <= limit)
        print(f"{key:28} {value:10.4f}{verdict}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
