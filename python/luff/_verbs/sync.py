"""``luff sync RUN URL``: uploads a run into a bucket, live or finished. docs/buckets.md."""

from __future__ import annotations

import argparse
import os
import queue
import random
import re
import shlex
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from luff.remote._card import Cards
from luff.remote._errors import BucketError, Refused, Unreachable, WrongUrl
from luff.remote._hosts import Hosts, is_job
from luff.remote._live import any_writes
from luff.remote._places import check_place
from luff.remote._requests import Requests
from luff.remote._run_folder import read_run_json
from luff.remote._store import check_installed, normal_url, open_store
from luff.remote._upload_key import check_encryption, uploading
from luff.remote._upload_notes import values_elsewhere
from luff.remote._uploader import Fenced, Uploader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from luff.remote._run_store import RunStore

OK, WRONG_USAGE, FENCED, REFUSED, INCOMPLETE = 0, 2, 4, 5, 6
# Told to end while its run goes on: who keeps it begins it again, as after any code that is not above.
AGAIN = 7
_NOT_BEGUN_S = 0.25  # how often a run that has not begun is looked for
_LONGEST_PAUSE_S = 60.0
_HASTE_S = 25.0  # after SIGTERM: containers are killed 30 s later
_REQUESTS_S = 10.0  # at most between two looks for requests
_COST_S = 60.0  # how often the run is told what its upload costs
_GRACE_S = 10.0  # of the watchdog, beyond the time for the rest


def _say(text: str) -> None:
    """Prints a line. A server's answer may hold anything: what moves a cursor is shown, not sent."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print(f"luff: sync: {text}", file=sys.stderr, flush=True)


class Sync:
    """Uploads until the job is over and all is in the bucket."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._run: str = arguments.run
        self._url: str = arguments.url
        self._beside_job: bool = arguments.until_closed
        self._flush_s: float = arguments.flush
        self._drain_s: float = arguments.drain
        self._rate: float = arguments.max_mbps * 1e6 / 8
        self._host: int = arguments.host
        self._keep_local: int | None = arguments.keep_local
        self._config: str = arguments.config
        self._job: str = arguments.job
        self._owner: str = arguments.owner
        self._again: bool = arguments.again
        self._parent = os.getppid()
        self._closed = threading.Event()  # the job has ended, or we are to end
        self._signals: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._hasty = False
        self._told_at = 0.0  # monotonic, when we were told to end
        self._input_ended = False
        self._told = ""
        self._failures = 0
        self._cost_at = time.monotonic()

    def run(self) -> int:
        threading.Thread(target=self._wait_for_signal, daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        if self._beside_job:
            threading.Thread(target=self._wait_for_end_of_input, daemon=True).start()
            os.nice(10)
        if self._beside_job or self._owner:
            _be_modest()
        if not self._owner:
            self._forget_ends()
        if not self._wait_for_run():
            return AGAIN if self._is_early() else OK
        # The run may lose its own copy of what is there.
        store = open_store(self._url, durable=self._keep_local is not None)
        _, run_id = read_run_json(self._run)
        if self._job:  # beside the upload, whose flushes may take long
            hosts = Hosts(self._run, store, self._job, _say)
            threading.Thread(target=hosts.follow, args=[threading.Event()], daemon=True).start()
        own: list[RunStore] = []
        if not self._retried(lambda: own.append(uploading(store, self._run, run_id))):
            return self._incomplete()
        uploader = Uploader(
            self._run,
            own[0],
            uploader=self._host,
            interval_s=self._flush_s,
            max_bytes_per_s=self._rate,
            keep_local=self._keep_local,
            owner=self._owner,
            again=self._again,
        )
        # Of several hosts that have their own workers each, the first tells of the run.
        cards = Cards(self._run, uploader.put_card) if self._host == 0 else None
        requests = Requests(self._run, store, uploader.run_id, _say)
        try:
            if not self._retried(uploader.begin):
                return self._incomplete()
            elsewhere = values_elsewhere(self._run, f"{store.url}/{uploader.run_id}")
            uploader.write_cost()
            url = f"{store.url}/{uploader.run_id}"
            how = "encrypted" if own[0].sealed else "not encrypted"
            if self._beside_job:
                _say(f"this run is {url} ({how})")
            else:
                print(url, flush=True)
                if own[0].sealed:
                    _say("the upload is encrypted")
            while not self._over():
                if self._retried(uploader.flush, once=True):
                    self._after_flush(uploader, cards)
                    requests.look()
                self._pause(requests)
            if self._is_early():  # the head goes on to say that more comes
                watchdog = self._end_within(_HASTE_S, AGAIN)
                self._retried(uploader.flush, once=True)
                watchdog.cancel()
                if self._is_early():
                    uploader.write_cost()
                    return AGAIN  # else the run has ended meanwhile: nobody begins us again
            done = self._finish(uploader, cards)
            if done == OK and elsewhere:  # --keep-local has removed them once they were there
                _say(f"values of this run that were removed from this host are in {elsewhere} alone")
                return INCOMPLETE
            return done
        finally:
            uploader.close()
            if cards is not None:
                cards.close()

    def _pause(self, requests: Requests) -> None:
        """Waits for the next flush. A signature counts for minutes, so requests are looked for meanwhile, too."""
        end = time.monotonic() + self._flush_s * random.uniform(0.9, 1.1)
        while (left := end - time.monotonic()) > 0 and not self._closed.wait(min(left, _REQUESTS_S)):
            if left > _REQUESTS_S:
                requests.look()

    def _after_flush(self, uploader: Uploader, cards: Cards | None) -> None:
        if cards is not None:
            cards.look(uploader.sequence)
        if time.monotonic() - self._cost_at > _COST_S:
            uploader.write_cost()
            self._cost_at = time.monotonic()

    def _finish(self, uploader: Uploader, cards: Cards | None) -> int:
        """Uploads the rest, within bounds. Rows come first, so that what is lost at last is payload."""
        self._closed.set()
        seconds = self._rest_s()
        end = time.monotonic() + seconds
        watchdog = self._end_within(seconds + _GRACE_S, INCOMPLETE)
        done = rows = False
        while not done and time.monotonic() < end:
            try:
                rows = rows or uploader.flush("draining", rows_only=True)
                uploader.flush("ended")
                done = not uploader.behind
                if done:
                    uploader.end()
            except Unreachable as error:
                done = False
                self._tell(str(error))
                time.sleep(min(1.0, max(0.0, end - time.monotonic())))
        if cards is not None:
            cards.end(max(1.0, end - time.monotonic()))
        uploader.write_cost()
        watchdog.cancel()
        return OK if done else self._incomplete()

    def _end_within(self, seconds: float, code: int) -> threading.Timer:
        """Ends this process after so long, whatever hangs."""
        watchdog = threading.Timer(
            seconds, lambda: os._exit(code if code != AGAIN or self._is_early() else INCOMPLETE)
        )
        watchdog.daemon = True
        watchdog.start()
        return watchdog

    def _is_early(self) -> bool:
        """True if we were told to end, but the run goes on, and who keeps us begins us again."""
        if not self._owner or not self._hasty:
            return False
        if self._beside_job:
            return not self._input_ended
        return os.getppid() == self._parent and any_writes(self._run)  # else who keeps us is dead

    def _forget_ends(self) -> None:
        """What the run says of an upload that was given up: somebody uploads it by hand now."""
        try:
            os.unlink(os.path.join(self._run, "sync", "ends.json"))
        except OSError:
            pass

    def _incomplete(self) -> int:
        if self._is_early():
            return AGAIN
        words = ["luff", "sync", self._run, self._url]
        words += ["--host", str(self._host)] if self._host else []
        words += ["--config", self._config] if self._config else []
        _say(f"not all of the run is in the bucket; `{shlex.join(words)}` goes on")
        return INCOMPLETE

    def _retried(self, what: object, once: bool = False) -> bool:
        """Calls until it succeeds, with pauses. False if the time to end came first, or with `once` if it failed."""
        end = None  # set once the job is over
        while True:
            try:
                what()  # type: ignore[operator]
            except Unreachable as error:
                self._failures += 1
                self._tell(str(error))
            else:
                if self._failures:
                    self._failures, self._told = 0, ""
                    _say("the bucket answers again")
                return True
            pause = min(_LONGEST_PAUSE_S, 2.0 ** min(self._failures - 1, 6)) * random.uniform(0.5, 1.0)
            if self._over():
                if once:  # `_finish` has the time for the rest
                    return False
                now, pause = time.monotonic(), min(pause, 1.0)
                end = min(end or float("inf"), now + self._rest_s())
                if now + pause > end:
                    return False
                time.sleep(pause)
            else:
                self._closed.wait(pause)
                if once:
                    return False

    def _rest_s(self) -> float:
        """Seconds for what is left once the job is over."""
        if not self._hasty:
            return self._drain_s
        return min(self._drain_s, max(1.0, self._told_at + _HASTE_S - time.monotonic()))

    def _over(self) -> bool:
        """True once nothing more will be written, or we are to end."""
        if self._hasty:
            return True
        if self._beside_job:
            orphaned = os.getppid() != self._parent  # the supervisor was killed: the training may go on
            return self._closed.is_set() and not (orphaned and self._still_written())
        return not self._still_written()

    def _still_written(self) -> bool:
        if self._closed.is_set():
            time.sleep(self._flush_s)  # `_closed.wait` returns at once now
        return any_writes(self._run)

    def _wait_for_run(self) -> bool:
        """Waits until the job has begun a run. False if it never does."""
        while self._beside_job and not os.path.exists(os.path.join(self._run, "run.json")):
            if self._closed.wait(_NOT_BEGUN_S):
                return os.path.exists(os.path.join(self._run, "run.json"))
        return True

    def _wait_for_end_of_input(self) -> None:
        try:
            while os.read(0, 4096):
                pass
        except OSError:
            pass
        self._input_ended = True
        self._closed.set()

    def _on_signal(self, _number: int, _frame: object) -> None:
        """Runs in the main thread wherever that is, also where it holds the lock of `_closed`."""
        self._signals.put(None)  # takes no lock that we may hold

    def _wait_for_signal(self) -> None:
        self._signals.get()
        self._told_at = time.monotonic()
        self._hasty = True
        self._closed.set()

    def _tell(self, text: str) -> None:
        """Says a failure once, and what it means."""
        if text != self._told and not self._told:
            _say(f"{text}; the run goes on, and is uploaded when the bucket answers")
        self._told = text


def _be_modest() -> None:
    """Where memory is short, this process is killed and not the training. It is begun again."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="luff sync", description="Uploads a run into a bucket, live or finished."
    )
    parser.add_argument("run", metavar="RUN", help="the run directory")
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/PREFIX, gs://…, az://… or file:///FOLDER")
    parser.add_argument("--flush", type=float, default=2.0, metavar="S", help="seconds between uploads (2)")
    parser.add_argument(
        "--drain", type=float, default=120.0, metavar="S", help="most seconds after the job (120)"
    )
    parser.add_argument(
        "--max-mbps", type=float, default=0.0, metavar="N", help="most megabits per second (no limit)"
    )
    parser.add_argument(
        "--host", type=int, default=0, metavar="N", help="number of this host, of several (0)"
    )
    parser.add_argument(
        "--keep-local",
        type=int,
        metavar="BYTES",
        help="values that stay in the folder of each worker, once they are uploaded (all)",
    )
    parser.add_argument("--config", default="", help=argparse.SUPPRESS)  # what the command that goes on names
    parser.add_argument("--job", default="", help=argparse.SUPPRESS)  # of `luff run --job`
    # Of who begins it again when it has ended before the run: known by 16 hexadecimal digits; not for the first time.
    parser.add_argument("--owner", default="", help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--until-closed", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--try", dest="only_try", action="store_true", help=argparse.SUPPRESS)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(words)
    if not (
        0.1 <= arguments.flush <= 3600 and 0 <= arguments.drain <= 86400 and 0 <= arguments.max_mbps <= 1e6
    ):
        _say("--flush is 0.1 to 3600 seconds, --drain 0 to 86400, --max-mbps 0 to 1000000")
        return WRONG_USAGE
    if arguments.keep_local is not None and not 0 <= arguments.keep_local < 1 << 62:
        _say("--keep-local is a number of bytes, 0 or more")
        return WRONG_USAGE
    if arguments.job and not is_job(arguments.job):
        _say("--job has 32 hexadecimal digits")
        return WRONG_USAGE
    if arguments.owner and not re.fullmatch("[0-9a-f]{16}", arguments.owner):
        _say("--owner has 16 hexadecimal digits")
        return WRONG_USAGE
    if not 0 <= arguments.host <= 9999:
        _say("--host is a number from 0 to 9999")
        return WRONG_USAGE
    try:
        arguments.url = normal_url(arguments.url)
        check_installed(arguments.url)
        check_encryption()
    except BucketError as error:
        _say(str(error))
        return WRONG_USAGE
    try:
        if arguments.only_try:  # before a job begins: what can be known without asking the network
            check_place(arguments.url)
            open_store(arguments.url)
            return OK
        if not arguments.until_closed:
            read_run_json(arguments.run)
        return Sync(arguments).run()
    except WrongUrl as error:
        _say(str(error))
        return WRONG_USAGE
    except Fenced as error:
        _say(str(error))
        return FENCED
    except Refused as error:
        _say(str(error))
        return REFUSED
    except BucketError as error:
        _say(str(error))
        return AGAIN if arguments.owner else INCOMPLETE


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # obstore's threads do not survive the end of the interpreter
