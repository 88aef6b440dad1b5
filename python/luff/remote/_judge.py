"""Beside ``luff watch URL``: copies of the live runs of a bucket, and what is put into it for who judges them.

The judge is the luff command: it reads the copies, and asks here for all that needs a network, in lines of JSON. Each
run has a queue, so what is asked of it is done in that order, and a bucket that refuses one run holds up no other.
docs/spec/bucket-format.md, section 14.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from luff.remote import _files, _judged_run
from luff.remote._bucket import is_begun
from luff.remote._checkpoint import get_checkpoint, put_checkpoint, seed
from luff.remote._commits import Commit, Ledger
from luff.remote._copies import Copies
from luff.remote._disk import write_whole
from luff.remote._errors import BucketError, Conflict, Refused, Unreachable, of_disk
from luff.remote._judge_folder import hold_judge, read_instance
from luff.remote._judged_card import put_judged_card
from luff.remote._judged_run import JudgedRun
from luff.remote._live_heads import MAX_HEADS, RunHeads, list_heads
from luff.remote._places import check_there
from luff.remote._put_once import put_unless_there
from luff.remote._requests import put_request
from luff.remote._run_store import RunStore
from luff.remote._spool import Spool, with_retries
from luff.remote._store import normal_url, open_store
from luff.remote._turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable


BEGAN = f"judges/{_files.EVALUATOR}"
_START_S = 60.0  # for a bucket that is away when we begin
_SERVE_S = 15.0  # until copies are served
_LOOK_S, _LONGEST_LOOK_S = 1.0, 10.0
_LOOK_SHARE = 20  # a look takes at most a 20th of the time
# Looks at runs take half of a core, but for a look at each every 3 s.
_CORE_SHARE, _LONGEST_PACE_S = 0.5, 3.0
_CHECK_S = 0.25  # between two checks of whose turn it is, for what comes with time
_NEWS_S = 0.05  # changed copies are told together
_LONGEST_PAUSE_S = 60.0
_CARD_S = 60.0  # between two cards of a run
_SAVE_S = 300.0  # between two checkpoints of a run in the bucket
_SETTLED_S = 30.0  # a run that ended without a word has not changed for so long when it is judged to its end
_REQUEST_S = 540.0  # a signature counts for ten minutes
_TOLD_BYTES = 256 << 10  # of lines at once
_AT_ONCE = 32  # more than it takes to look at 250 runs a second in a bucket that answers within 0.1 s


class _More(Exception):
    """The rest is done in another turn, so that others have theirs."""


class Judge:
    """Serves one luff command. `tell` sends it an object of JSON; it is called from any thread.

    `shard`: of so many; a run is ours if its id's first digit leaves that rest.
    """

    def __init__(
        self,
        url: str,
        state: str,
        shard: tuple[int, int],
        earlier: bool,
        tell: Callable[[dict[str, Any]], None],
        *,
        stops: bool = False,
        drain: bool = False,
        luff: str = "",
        rules: str = "",
    ) -> None:
        """`stops`: jobs are asked to stop with our signature, so nothing that others say was found is taken over.

        `drain`: the command leaves when nothing is left, so a folder that is not there is refused.

        `luff`: the command, for cards. `rules`: 16 hexadecimal digits that tell our rules and parameters from others.
        """
        self.url = normal_url(url)
        self.state = state
        self._shard, self._shards = shard
        self._earlier = earlier
        self._stops = stops
        self._drain = drain
        self._begun = True  # a Luff has written there
        self._luff = luff
        self._rules = rules
        self._send = tell
        self._store = open_store(self.url)
        self._root = os.path.join(state, "copies")
        self._runs: dict[str, JudgedRun] = {}
        self._lock = threading.Lock()
        self._turns = Turns(_AT_ONCE)
        self._leaving = threading.Event()
        self._news: list[str] = []  # ids of runs whose copies have changed, not told yet
        self._news_at = 0.0  # monotonic: when news were told last
        self._began_unix_ns = 0
        self._said = ""
        self._idle: bool | None = None
        self._many = False
        self._told_rules = False
        self._look_cpu_s = 0.0  # of a look at a run, a mean over the last hundred
        self._pace_s = 0.0  # between two looks at a run
        self._counted = (0, 0, 0, 0)  # requests, puts, bytes sent and received that were told

    # ---- Begin ----

    def start(self) -> None:
        """Checks the bucket, and begins to serve copies. Raises a BucketError."""
        try:
            os.makedirs(self._root, mode=0o700, exist_ok=True)
            self._held = hold_judge(self._root, self.state)
            self._instance = read_instance(self._root)
            if os.path.lexists(os.path.join(self._root, "socket")):
                os.unlink(os.path.join(self._root, "socket"))  # of one that was killed
        except OSError as error:
            raise Refused(f"{error.strerror}: {self._root}; --state names another place") from None
        with_retries(self._check_bucket, _START_S)
        self._copies = Copies(self._root, cache_bytes=8 << 30, idle_s=float("inf"))
        self.base = os.path.dirname(self._copies.spool(f"{self.url}/{'0' * 32}").folder)
        os.makedirs(self.base, mode=0o700, exist_ok=True)
        self._copies.serving = threading.Thread(target=self._copies.run, daemon=True)
        self._copies.serving.start()
        end = time.monotonic() + _SERVE_S
        while not os.path.exists(os.path.join(self._root, "socket")):
            if time.monotonic() > end:
                raise Refused(f"the copies cannot be served: {self._root}")
            time.sleep(0.01)

    def _check_bucket(self) -> None:
        """Notes when runs of this bucket were judged first; the second put tells a store without conditions."""
        if self._drain:  # without it the first job may come later
            check_there(self.url)
        self._begun = is_begun(self._store)
        put_unless_there(self._store, BEGAN, b"{}")
        try:
            self._store.put_new(BEGAN, b"{}")
        except Conflict:
            pass
        else:
            raise Refused(
                f"the store takes conditional puts and does not obey them, so findings would be said twice: {self.url}"
            )
        begin, name = BEGAN.rsplit("/", 1)
        times = [o.modified_unix_ns for o in self._store.objects(f"{begin}/", MAX_HEADS) if o.name == name]
        if not times:
            raise Unreachable(f"the store does not list what was put: {self.url}/{BEGAN}")
        self._began_unix_ns = times[0]

    # ---- The bucket ----

    def follow(self) -> None:
        """Looks for what is new until `leave`. Never raises."""
        if not self._begun:
            self._send({"say": f"no Luff has written there yet; is the URL right? {self.url}"})
        while not self._leaving.is_set():
            begun = time.monotonic()
            try:
                self._take_list(self._list())
                if self._said:
                    self._said = ""
                    self._send({"say": "the bucket answers again"})
            except BucketError as error:
                self._say_once(str(error))
                self._begin_work()
                self._leaving.wait(_LOOK_S)
                continue
            self._begin_work()
            self._tell_idle()
            self._tell_traffic()
            took = time.monotonic() - begun
            pause = min(_LONGEST_LOOK_S, max(_LOOK_S, _LOOK_SHARE * took))
            end = time.monotonic() + pause
            while (left := end - time.monotonic()) > 0 and not self._leaving.wait(min(_CHECK_S, left)):
                self._begin_work()
                self._tell_idle()
                self._tell_news()
                self._turns.go_on()

    def _tell_traffic(self) -> None:
        """What the bucket was asked for since the last time."""
        stores = [self._store, *self._copies.stores()]
        now = tuple(sum(getattr(s, n) for s in stores) for n in ("requests", "puts", "sent", "received"))
        requests, puts, sent, received = (a - b for a, b in zip(now, self._counted, strict=True))
        self._counted = now
        if requests:
            told = {"gets": requests - puts, "puts": puts, "sent": sent, "received": received}
            self._send({"asked": told})

    def _say_once(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._send({"say": text})

    def _is_ours(self, run_id: str) -> bool:
        return int(run_id[0], 16) % self._shards == self._shard

    def _list(self) -> dict[str, RunHeads]:
        digits = [d for d in "0123456789abcdef" if self._is_ours(d)] if self._shards > 1 else [""]
        found, many = list_heads(self._store, digits)
        if many and not self._many:
            self._many = True
            self._send(
                {
                    "say": f"more than {MAX_HEADS} objects lie below live/, the rest is not judged; "
                    "luff prune removes old runs, and --shard parts them"
                }
            )
        return found

    def _take_list(self, listed: dict[str, RunHeads]) -> None:
        with self._lock:
            for run_id, one in listed.items():
                run = self._runs.get(run_id)
                if run is None:
                    run = self._runs[run_id] = JudgedRun(run_id)
                run.modified_unix_ns, run.heads = one
            for run_id in [r for r in self._runs if r not in listed]:
                run = self._runs[run_id]
                run.heads = ()
                if (
                    run.state != "open" and not run.busy and not run.queue
                ):  # heads are removed once runs are over
                    del self._runs[run_id]

    def _pace_of(self, live: int) -> float:
        return min(_LONGEST_PACE_S, live * self._look_cpu_s / _CORE_SHARE)

    def _begin_work(self) -> None:
        """Begins what is due of all runs."""
        now = time.monotonic()
        with self._lock:
            live = sum(run.state == "open" for run in self._runs.values())
            self._pace_s = self._pace_of(live)
            due = [run for run in self._runs.values() if run.is_due(now, self._pace_s)]
            for run in due:
                run.busy = True
        # After a restart the live ones come first; else who was looked at longest ago.
        for run in sorted(due, key=lambda run: (run.looked_at, -run.modified_unix_ns)):
            self._turns.add(partial(self._work, run))

    def _begin_one(self, run: JudgedRun) -> None:
        """Begins what is due of one run: the others are not looked through for it."""
        with self._lock:
            if self._runs.get(run.run_id) is not run:  # it was over, and is no more in the list
                return
            if not run.is_due(time.monotonic(), self._pace_s):
                return
            run.busy = True
        self._turns.add(partial(self._work, run))

    def _work(self, run: JudgedRun) -> None:
        problem, run.refused = "", False
        cpu, was_open = time.thread_time(), run.state == "open"
        try:
            if run.state == "late":
                self._end_late(run)
            if (
                run.heads != run.looked
                or run.failing
                or time.monotonic() - run.looked_at > _judged_run.QUIET_LOOK_S
            ):
                looked = run.heads
                self._look_at(run)
                run.looked, run.looked_at = looked, time.monotonic()
            while run.queue:
                self._do(run, run.queue[0])
                run.queue.popleft()
            if run.state == "open" and run.judged is not None:
                self._end(run, run.judged)
            if run.state == "open":
                self._take_over(run)
                self._save(run, _SAVE_S)
                self._put_card(run, _CARD_S)
            run.failing, run.pause = False, 0.0
        except _More:
            run.failing, run.pause = True, 0.0
        except Refused as error:
            problem, run.pause, run.refused = str(error), _LONGEST_PAUSE_S, True
        except BucketError as error:
            problem, run.pause = str(error), min(_LONGEST_PAUSE_S, max(1.0, 2 * run.pause))
        except OSError as error:
            problem, run.pause = (
                str(of_disk(error, self._root)),
                min(_LONGEST_PAUSE_S, max(1.0, 2 * run.pause)),
            )
        except Exception as error:  # what nobody has thought of holds up one run
            problem, run.pause = f"{type(error).__name__}: {error}", _LONGEST_PAUSE_S
        if problem:
            run.failing = True
            if problem not in run.told and len(run.told) < 20:
                run.told.add(problem)
                self._send({"say": f"run {run.run_id}: {problem}"})
        with self._lock:
            if was_open:
                self._look_cpu_s += (time.thread_time() - cpu - self._look_cpu_s) / 100
            run.retry_at = time.monotonic() + run.pause
            run.busy = False
        self._tell_news()
        self._begin_one(run)  # what was asked for meanwhile

    def _tell_news(self) -> None:
        """Tells whose copies have changed, of several runs at once, so that they are judged now."""
        with self._lock:
            now = time.monotonic()
            if not self._news or (now - self._news_at < _NEWS_S and self._turns.waiting):
                return
            news, self._news, self._news_at = self._news, [], now
        self._send({"news": news})

    def _tell_idle(self) -> None:
        with self._lock:
            idle = all(run.is_at_rest() for run in self._runs.values())
        if idle != self._idle:
            self._idle = idle
            self._send({"idle": idle})

    # ---- One run ----

    def _begin_run(self, run: JudgedRun) -> tuple[Spool, Ledger]:
        """Reads what there is of a run: its heads, and its commits, which the judge is told."""
        spool = self._read_heads(run)  # first: they say whether the run is encrypted
        if run.ledger is None:
            run.ledger = Ledger(spool.store, run.run_id, self._instance, self._rules)
        if not run.ledger.loaded:
            run.ledger.load()
            if not run.ledger.loaded:
                raise _More
            # Whether somebody acts on what is open is not known: it may be ours to say.
            for number, lines in sorted(run.ledger.by_open(run.ledger.lines).items()):
                self._tell_lines(run, lines, number, False)
        return spool, run.ledger

    def _read_heads(self, run: JudgedRun) -> Spool:
        if run.spool is None:
            run.spool = self._copies.spool(f"{self.url}/{run.run_id}")
        self._know_heads(run, run.spool)
        run.spool.look_at_heads()
        return run.spool

    def _know_heads(self, run: JudgedRun, spool: Spool) -> None:
        """What our list told is not listed for each run again."""
        if not self._many:  # else some may be missing in it
            spool.know_heads([int(name[1:]) for name, _ in run.heads])

    def _compare_rules(self, run: JudgedRun, ledger: Ledger) -> None:
        if ledger.ended_by_others and not self._told_rules:
            self._told_rules = True
            self._send(
                {
                    "say": f"run {run.run_id}, and perhaps others, was judged to its end with other rules or "
                    "parameters, or those of another version of Luff, and is not judged again; who judges "
                    "beside us with other rules needs a bucket of its own"
                }
            )

    def _look_at(self, run: JudgedRun) -> None:
        if run.state in ("over", "elsewhere", "failed"):
            run.state = "new"
        if run.state == "open" and run.spool is not None:
            self._refresh(run, run.spool)
            return
        spool = self._read_heads(run)
        if spool.heads.judged_on_host:
            return self._leave_run(run, "elsewhere")
        if spool.heads.pruned:
            return self._leave_run(run, "over")
        if not spool.heads.has_rows and not spool.over:
            self._note_heads(run, spool)
            return
        spool, ledger = self._begin_run(run)
        last = ledger.last
        if last is not None and last.heads and last.heads == spool.heads.sequences:
            self._compare_rules(run, ledger)
            if not ledger.open:
                return self._leave_run(run, "over")
            if not any(ours for _, ours, _ in ledger.open.values()):
                run.state = "late"
                return
        old = run.modified_unix_ns < self._began_unix_ns
        if last is None and old and spool.over and not self._earlier:
            return self._leave_run(run, "over")
        if not spool.heads.has_rows:  # nothing was recorded
            return self._leave_run(run, "over")
        self._seed(run, spool, ledger)
        ledger.lines.clear()
        spool.open(whole=True)
        run.state, run.judged = "open", None
        self._note_heads(run, spool)
        self._send({"run": run.run_id, "open": True})
        self._tell_open(run, ledger)

    def _seed(self, run: JudgedRun, spool: Spool, ledger: Ledger) -> None:
        """Lets the rules begin where the bucket says, in a new copy.

        Who signs stops begins at the first step: what is found then, this machine has found.
        """
        rules, mark = os.path.join(spool.folder, "rules"), os.path.join(spool.folder, "seeded")
        new = not os.path.exists(os.path.join(spool.folder, "run.json"))
        if new or (self._stops and os.path.exists(mark)):
            shutil.rmtree(rules, ignore_errors=True)  # half a beginning, or a seeded one
            if os.path.exists(rules):
                raise Unreachable(f"the copy cannot be written: {rules}")
        if self._stops and os.path.exists(mark):
            os.unlink(mark)
        if not new or self._stops:
            return
        saved = get_checkpoint(spool.store, run.run_id)
        if not all(ledger.knows(line) for line in saved[1].split("\n") if line):
            saved = ("", "")  # it takes for found what nobody has committed
        os.makedirs(spool.folder, mode=0o700, exist_ok=True)
        write_whole(mark, b"")
        seed(spool.folder, saved, ledger.lines)

    def _tell_open(self, run: JudgedRun, ledger: Ledger) -> None:
        for number, (_, ours, commit) in sorted(ledger.open.items()):
            if ours:
                self._tell_lines(run, list(commit.lines), number, True)

    def _refresh(self, run: JudgedRun, spool: Spool) -> None:
        self._know_heads(run, spool)
        try:
            if spool.refresh():
                with self._lock:
                    self._news.append(run.run_id)
        except Refused:
            if run.heads:
                raise
            with self._lock:
                run.queue.clear()
            return self._leave_run(run, "over")  # its heads were removed: nobody goes on
        self._note_heads(run, spool)
        if spool.heads.judged_on_host:
            self._leave_run(run, "elsewhere")

    def _note_heads(self, run: JudgedRun, spool: Spool) -> None:
        if spool.heads.sequences != run.sequences:
            run.sequences, run.changed_at = spool.heads.sequences, time.monotonic()
        if not spool.over:
            run.ended = {}
        elif not run.ended:
            run.ended = spool.heads.sequences

    def _end_late(self, run: JudgedRun) -> None:
        """Acts on what another judge has committed, if that one seems to be gone."""
        run.looked_at = time.monotonic()
        if (
            run.ledger is None
            or run.ledger.take_over()
            or any(ours for _, ours, _ in run.ledger.open.values())
        ):
            run.state, run.ledger, run.looked = "new", None, ()  # with a copy, in which the judge acts
        elif not run.ledger.open:
            self._leave_run(run, "over")

    def _leave_run(self, run: JudgedRun, state: str) -> None:
        """The run needs nothing more for now; its copy goes."""
        self._send({"run": run.run_id, "open": False})
        if run.spool is not None:
            self._copies.drop(run.spool)
        run.spool, run.ledger, run.state, run.judged = None, None, state, None

    def _tell_lines(
        self, run: JudgedRun, lines: list[str], number: int, act: bool, again: bool = False
    ) -> None:
        """Tells the judge which lines stand in the bucket, some at a time."""
        at = 0
        while at < len(lines):
            size, begin = 0, at
            while at < len(lines):
                size += len(json.dumps(lines[at]))
                if at > begin and size > _TOLD_BYTES:
                    break
                at += 1
            told = {"run": run.run_id, "lines": lines[begin:at], "number": number, "act": act}
            self._send(told | ({"again": True} if again else {}))

    def _do(self, run: JudgedRun, asked: dict[str, Any]) -> None:
        if asked["do"] == "failed":
            if run.state == "open":
                self._leave_run(run, "failed")
            return
        ledger = run.ledger
        if ledger is None or not ledger.loaded:
            _, ledger = self._begin_run(run)
        if asked["do"] == "commit":
            wanted = [str(line) for line in asked["lines"]]
            told = self._commit(run, ledger, wanted, {})
            rest = ledger.by_open(line for line in wanted if line not in told)
            for number, lines in sorted(rest.items()):
                self._tell_lines(run, lines, number, False)
        elif asked["do"] == "done":
            ledger.done(int(asked["number"]))
        elif asked["do"] == "request":
            self._put_request(run, ledger, asked)
        elif asked["do"] == "judged":
            run.steps = int(asked["steps"])
            if run.state == "open" and run.spool is not None:  # else it was left meanwhile
                run.judged = run.spool.heads.rows

    def _end(self, run: JudgedRun, judged: dict[Any, int]) -> None:
        """Ends a run whose rows are judged, once no more of them can come."""
        assert run.spool is not None and run.ledger is not None
        if run.spool.heads.rows != judged:  # the job went on
            run.ended = {}
            self._note_heads(run, run.spool)
            return self._judge_on(run)
        if any(
            ours for _, ours, _ in run.ledger.open.values()
        ):  # it became ours when the judge had left the run
            self._judge_on(run)
            return self._tell_open(run, run.ledger)
        settled = time.monotonic() - run.changed_at > _SETTLED_S
        heads = run.ended or (run.sequences if settled else {})
        if not heads:
            return  # the copy stays
        ledger, sequences = run.ledger, run.sequences
        self._commit(run, ledger, [], heads)
        self._compare_rules(run, ledger)
        self._save(run, 0.0)
        self._put_card(run, 0.0)
        self._leave_run(run, "over")
        if ledger.open:
            run.ledger, run.state = ledger, "late"
        if heads != sequences:
            run.looked = ()  # it has ended a second time meanwhile

    def _judge_on(self, run: JudgedRun) -> None:
        run.judged = None
        self._send({"run": run.run_id, "open": True})

    def _commit(self, run: JudgedRun, ledger: Ledger, lines: list[str], heads: dict[int, int]) -> set[str]:
        """Returns the lines that the judge was told of. What came before a failure is told, too."""
        told: set[str] = set()

        def tell(commit: Commit, ours: bool) -> None:
            told.update(commit.lines)
            run.found = run.found or bool(commit.lines)
            self._tell_lines(run, list(commit.lines), commit.number, ours)

        ledger.commit(lines, run.steps, heads, tell)
        return told

    def _put_request(self, run: JudgedRun, ledger: Ledger, asked: dict[str, Any]) -> None:
        if time.monotonic() - asked["at"] > _REQUEST_S:  # its signature has expired: it is signed again
            self._send(
                {"say": f"run {run.run_id}: its job could not be asked to stop in time; it is asked again"}
            )
            ours = [(n, commit) for n, (_, is_ours, commit) in sorted(ledger.open.items()) if is_ours]
            with self._lock:  # they are not done, after all
                for one in [one for one in run.queue if one["do"] == "done"]:
                    if one["number"] in [number for number, _ in ours]:
                        run.queue.remove(one)
            for number, commit in ours:
                self._tell_lines(run, list(commit.lines), number, True, again=True)
            return
        put_request(self._store, run.run_id, asked["object"].encode())

    def _take_over(self, run: JudgedRun) -> None:
        if run.ledger is not None:
            won = run.ledger.take_over()
            if won and run.judged is not None:
                self._judge_on(run)
            for commit in won:
                self._tell_lines(run, list(commit.lines), commit.number, True)

    def _put_card(self, run: JudgedRun, pause: float) -> None:
        """Lists of runs say what was found."""
        if run.spool is None or not run.found or time.monotonic() - run.card_at < pause:
            return
        run.found, run.card_at = False, time.monotonic()
        sealed = isinstance(run.spool.store, RunStore) and run.spool.store.sealed
        put_judged_card(self._store, run.run_id, run.spool.folder, self._luff, sealed)

    def _save(self, run: JudgedRun, pause: float) -> None:
        """Puts the checkpoint of the rules, if it is new and what it knows of is committed."""
        if run.spool is None or run.ledger is None or time.monotonic() - run.saved_at < pause:
            return
        saved = put_checkpoint(run.spool.store, run.run_id, run.spool.folder, run.ledger.knows, run.saved)
        if saved != run.saved or pause == 0.0:
            run.saved, run.saved_at = saved, time.monotonic()

    # ---- The judge's words ----

    def hear(self, asked: dict[str, Any]) -> None:
        """Takes a request of the judge."""
        run_id = asked.get("run")
        if not isinstance(run_id, str) or not _files.is_run_id(run_id):
            return
        asked["at"] = time.monotonic()
        with self._lock:
            run = self._runs.get(run_id)
            if run is None:
                run = self._runs[run_id] = JudgedRun(run_id)
            run.queue.append(asked)
        self._begin_one(run)

    def leave(self, seconds: float) -> None:
        """Does what was asked for, and saves checkpoints, for at most so long."""
        self._leaving.set()
        end = time.monotonic() + seconds
        while time.monotonic() < end / 2 + (end - seconds) / 2:
            with self._lock:
                if not any(run.busy or (run.queue and not run.failing) for run in self._runs.values()):
                    break
            self._begin_work()
            time.sleep(0.02)
        with self._lock:
            runs = [run for run in self._runs.values() if run.state == "open" and not run.busy]
        saved = threading.Semaphore(0)
        for run in runs:
            self._turns.add(partial(self._save_quietly, run, saved))
        for _ in runs:
            if not saved.acquire(timeout=max(0.0, end - time.monotonic())):
                break
        self._turns.end()
        self._copies.end(max(0.0, end - time.monotonic()))

    def _save_quietly(self, run: JudgedRun, saved: threading.Semaphore) -> None:
        try:
            self._save(run, 0.0)
        except (BucketError, OSError):
            pass  # an older checkpoint: the next judge looks at some steps again
        finally:
            saved.release()
