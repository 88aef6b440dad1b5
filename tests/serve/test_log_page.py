"""The page's Log view in a real browser: lines with their steps, the cursor, search, nothing interpreted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import luff as package

from tests.browser import Browser
from tests.browser import executable as browser_executable

from .conftest import LIMIT_S, WATCH, Server, executable

SCRIPT = """
import sys, time
import luff.numpy
hook = luff.numpy.attach({})
for i in range(20):
    with hook.step() as step:
        step.loss(1.0)
    print(f"number {i} of twenty")
    if i == 10:
        print("<img src=x onerror=alert(1)> \\x1b[31mred\\x1b[0m", file=sys.stderr)
    time.sleep(0.12)
hook.close()
"""


def test_the_log_beside_the_steps(tmp_path: Path) -> None:
    browser_executable()
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run(
        [executable(), "run", "--log", "--run", str(tmp_path / "root" / "mine"), "--rules", "none", "--",
         sys.executable, str(tmp_path / "train.py")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S, check=True,
        env=os.environ | {"LUFF_HOME": str(tmp_path),
                          "LUFF_BOOTSTRAP": str(Path(package.__file__).parent / "_bootstrap")},
    )  # fmt: skip
    server = Server(tmp_path, tmp_path / "root")
    try:
        server.require_page()
        with contextlib.closing(Browser(tmp_path / "profile")) as browser:
            browser.before_each_page(WATCH)
            browser.open(server.link)
            browser.until("document.querySelectorAll('tbody tr').length === 1")
            run = server.get("/api/v1/runs")["runs"][0]["id"]
            browser.evaluate(f"location.hash = '#/run/{run}?view=log'")
            browser.until("document.querySelectorAll('.line').length === 21")
            assert "<img src=x onerror=alert(1)> red" in browser.evaluate(
                "document.querySelector('.err').innerText"
            )
            assert browser.evaluate("document.querySelectorAll('.line img').length") == 0
            browser.evaluate(f"location.hash = '#/run/{run}?view=log&step=12'")
            browser.until("document.querySelector('.here')?.innerText.includes('number 12')")
            browser.tab_to("e.innerText === 'step 5'")
            browser.press("Enter")
            browser.until("location.hash.includes('step=5')")
            browser.evaluate(f"location.hash = '#/run/{run}?view=log&find=IMG'")
            browser.until("document.querySelectorAll('.line').length === 1")
            browser.until("document.body.innerText.includes('1 of 21 lines')")
            assert browser.evaluate("JSON.stringify(problems)") == "[]"
    finally:
        server.end()
