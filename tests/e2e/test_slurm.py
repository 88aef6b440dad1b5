"""Jobs of a real Slurm, of one node on loopback: ranks, a stop, scancel, signals, a job that is queued again.

The daemons are of Debian's packages (slurmctld, slurmd, slurm-client), run from a folder of the test, and want to be
root. Without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import luff as package
import pytest

from .conftest import Luff

pytestmark = pytest.mark.thorough

DEPLOY = Path(__file__).parents[2] / "deploy" / "slurm"
TASK = Path(__file__).parent / "scripts" / "slurm_task.py"
TOOLS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol")
LIMIT_S = 180
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/bin"
# Neither munge nor control groups nor accounting: what a test does not need. Times are as short as Slurm lets them be:
# how long a job that is queued again waits is the life of a credential.
CONFIGURATION = """
ClusterName=luff
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=30
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and a node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("state", "spool"):
            (folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        file = folder / "slurm.conf"
        file.write_text(CONFIGURATION.format(host=host, folder=folder, ports=_free_ports(2)))
        self.environment = {"SLURM_CONF": str(file), "PATH": PATH}  # jobs get no more but what is said
        self._daemons: list[subprocess.Popen[bytes]] = []
        try:
            self._daemons.append(self._start("slurmctld", "-D", "-i"))
            self._daemons.append(self._start("slurmd", "-D", "-N", host))
        except BaseException:
            self._end_daemons()
            raise

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{words[0]}.log").open("wb") as log:
            return subprocess.Popen(words, env=self.environment, stdout=log, stderr=log)

    def _run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=self.environment | environment, capture_output=True, text=True, timeout=60, check=False
        )

    def call(self, *words: str, **environment: str) -> str:
        done = self._run(*words, **environment)
        assert done.returncode == 0, (words, done.stderr, self.logs())
        return done.stdout

    def ready(self) -> bool:
        """True once the node takes jobs."""
        return re.search(r"State=IDLE\b(?!\+)", self._run("scontrol", "show", "node").stdout) is not None

    def job(self, number: str) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.call("scontrol", "show", "job", number)))

    def logs(self) -> str:
        return "".join(file.read_text(errors="replace")[-3000:] for file in self.folder.glob("*.log"))

    def close(self) -> None:
        """Ends the jobs that are left, and the daemons, whatever state they are in."""
        try:
            self._run("scancel", "--user=root")
            end = time.monotonic() + LIMIT_S
            while self._run("squeue", "--noheader").stdout.strip() and time.monotonic() < end:
                time.sleep(0.1)
        except subprocess.TimeoutExpired:  # a controller that does not answer
            pass
        finally:
            self._end_daemons()

    def _end_daemons(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _until(what: Any, why: Any) -> None:
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end, why()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)} (Debian: slurmctld, slurmd, slurm-client)")
    if os.geteuid() != 0:
        pytest.skip("Slurm's daemons start jobs as their users, so they must be root")
    found = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        _until(found.ready, found.logs)
        yield found
    finally:
        found.close()


class Job:
    """A job that runs `train.sbatch`, with two tasks."""

    def __init__(self, slurm: Slurm, luff: Luff, *words: str) -> None:
        self.slurm, self.luff, self.folder = slurm, luff, luff.tmp
        (luff.tmp / "bin").mkdir()
        (luff.tmp / "bin" / "luff").symlink_to(luff.executable)
        (luff.tmp / "runs").mkdir()
        kept = ("PYTHONPATH", "LUFF_BOOTSTRAP", "LUFF_PYTHON")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        told = slurm.call(
            "sbatch", "--job-name=digits", "--ntasks=2", f"--output={self.folder}/out", "--time=30",
            f"--chdir={self.folder}", str(DEPLOY / "train.sbatch"),
            sys.executable, str(TASK), str(self.folder), *words,
            PATH=f"{luff.tmp}/bin:{PATH}", LUFF_RUNS=str(luff.tmp / "runs"), HOME=str(luff.home), NO_COLOR="1",
            OMP_NUM_THREADS="1", **environment,
        )  # fmt: skip
        self.number = re.findall(r"[0-9]+", told)[-1]
        self.run = luff.tmp / "runs" / f"digits-{self.number}"

    def said(self) -> str:
        out = self.folder / "out"
        return (out.read_text() if out.exists() else "") + self.slurm.logs()

    def reached(self) -> None:
        """Waits until both tasks stand at their step."""
        _until(lambda: all((self.folder / f"reached-{rank}").exists() for rank in "01"), self.said)

    def ended(self) -> dict[str, str]:
        """Waits for its end."""
        _until(
            lambda: self.slurm.job(self.number)["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
            self.said,
        )
        return self.slurm.job(self.number)

    def shown(self) -> dict[str, Any]:
        code, out, err = self.luff("show", str(self.run), "--json")
        assert code == 0, err
        found = json.loads(out)
        assert isinstance(found, dict)
        return found


def test_two_tasks_are_the_ranks_of_one_run_that_has_the_jobs_number(slurm: Slurm, luff: Luff) -> None:
    job = Job(slurm, luff, "40")
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.said()
    with package.open_trial(job.run) as trial:
        assert trial.steps("TRAIN") == list(range(40))
        assert [worker["last_train_step"] for worker in trial.workers()] == [39, 39]
    code, out, err = luff("runs", str(job.run.parent), "--tag", f"slurm-{job.number}", "--json")
    assert code == 0, err
    assert [Path(json.loads(line)["run"]).name for line in out.splitlines()] == [job.run.name]
    assert job.shown()["outcome"] == "completed"


def test_a_finding_stops_both_tasks_after_the_same_step(slurm: Slurm, luff: Luff) -> None:
    job = Job(slurm, luff, "2000000", "--nan-at", "30")
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "76:0"), job.said()
    with package.open_trial(job.run) as trial:
        workers = trial.workers()
    assert len(workers) == 2
    assert len({worker["last_train_step"] for worker in workers}) == 1, workers
    assert job.shown()["outcome"] == "stopped"


def test_scancel_ends_the_job_and_the_run_says_by_what(slurm: Slurm, luff: Luff) -> None:
    job = Job(slurm, luff, "50", "--wait-at", "20")
    job.reached()
    slurm.call("scancel", job.number)
    assert job.ended()["JobState"] == "CANCELLED", job.said()
    shown = job.shown()
    assert shown["outcome"] == "failed", shown
    with package.open_trial(job.run) as trial:
        assert trial.steps("TRAIN") == list(range(21))


@pytest.mark.parametrize("to", [["--batch"], []], ids=["the batch script", "the tasks"])
def test_usr1_reaches_the_tasks_and_they_leave_in_their_own_way(
    slurm: Slurm, luff: Luff, to: list[str]
) -> None:
    """`--signal=B:USR1@120` and `--signal=USR1@120` send the same before the time limit."""
    job = Job(slurm, luff, "50", "--wait-at", "20")
    job.reached()
    slurm.call("scancel", "--signal=USR1", *to, job.number)
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.said()
    assert job.shown()["outcome"] == "completed"
    with package.open_trial(job.run) as trial:
        assert trial.steps("TRAIN") == list(range(21))


def test_a_job_that_is_queued_again_goes_on_with_its_run(slurm: Slurm, luff: Luff) -> None:
    job = Job(slurm, luff, "50", "--wait-at", "20")
    job.reached()
    slurm.call("scontrol", "requeue", job.number)
    _until(lambda: slurm.job(job.number)["Restarts"] == "1", job.said)  # all of it has ended
    (job.folder / "go").touch()
    ended = job.ended()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), job.said()
    with package.open_trial(job.run) as trial:
        assert trial.steps("TRAIN") == list(range(50))
        assert [worker["last_train_step"] for worker in trial.workers()] == [49, 49]
    assert job.shown()["outcome"] == "completed"
    assert [entry.name for entry in job.run.parent.iterdir()] == [job.run.name]
