"""Controls Chromium without a window through its DevTools protocol over two pipes; needs nothing but the browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 90


def executable() -> str:
    """Returns the browser; skips the test if there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no browser; install chromium")
    return found


class Browser:
    """A browser with one page. `words`: more of its command line."""

    def __init__(self, profile: Path, *words: str) -> None:
        to_browser, self._in = os.pipe()
        self._out, from_browser = os.pipe()

        def move() -> None:  # the browser reads from 3 and writes to 4
            ends = os.dup(to_browser), os.dup(from_browser)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [executable(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--no-proxy-server", "--window-size=1400,1000", f"--user-data-dir={profile}",
             "--remote-debugging-pipe", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=move, close_fds=False, env=os.environ | {"HOME": str(profile)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self._out, False)
        self._buffer, self._last = b"", 0
        self._session: str | None = None
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        self._call("Page.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(timeout=LIMIT_S)
        os.close(self._in)
        os.close(self._out)

    def _call(self, method: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                answer = json.loads(text)
                if answer.get("id") == self._last:
                    assert "error" not in answer, answer["error"]
                    return dict(answer["result"])
            try:
                got = os.read(self._out, 1 << 20)
                assert got, "the browser has ended"
                self._buffer += got
            except BlockingIOError:
                time.sleep(0.01)
        raise AssertionError(f"no answer to {method} within {LIMIT_S} s")

    def open(self, url: str) -> None:
        """Opens a page; `until` waits until it is drawn."""
        self._call("Page.navigate", {"url": url})

    def before_each_page(self, script: str) -> None:
        """Runs a script in every page before its own."""
        self._call("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def forget_policies(self) -> None:
        """Enforces no content security policy from now on, as a browser that does not know them."""
        self._call("Page.setBypassCSP", {"enabled": True})

    def press(self, key: str) -> None:
        """Presses and releases a key: "a", "ArrowLeft"."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = {"Tab": 9, "Enter": 13}.get(key, 0)  # which the browser itself acts upon
        event = {"key": key, "windowsVirtualKeyCode": code} if code else {"key": key}
        self._call("Input.dispatchKeyEvent", {"type": "keyDown", **event, **text})
        self._call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def tab_to(self, condition: str) -> None:
        """Presses Tab until the focused element, called `e` in the condition, meets it."""
        for _ in range(300):
            self.press("Tab")
            if self.evaluate(f"((e) => Boolean(e) && ({condition}))(document.activeElement)"):
                return
        raise AssertionError(f"the keyboard does not reach it: {condition}")

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the page, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", size)

    def frames(self) -> list[str]:
        """Returns the addresses that the frames of the page show."""
        tree = self._call("Page.getFrameTree")["frameTree"]
        return [child["frame"]["url"] for child in tree.get("childFrames", [])]

    def evaluate(self, script: str, *, clicked: bool = False) -> Any:
        """Returns the value of a JavaScript expression in the page; `clicked`: as if the user had asked for it."""
        told = self._call(
            "Runtime.evaluate",
            {"expression": script, "returnByValue": True, "awaitPromise": True, "userGesture": clicked},
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, script: str) -> Any:
        """Evaluates an expression until it is true."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = self.evaluate(script)
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(
            f"never true: {script}; the page shows: {self.evaluate('document.body.innerText')}"
        )

    def screenshot(self, path: Path) -> None:
        """Saves what is visible, as PNG or WebP."""
        kind = {"format": "webp", "quality": 82} if path.suffix == ".webp" else {"format": "png"}
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", kind)["data"]))


def main(link: str, *pictures: str) -> None:
    """Draws pages: FILE=WHAT, where WHAT is added to the link; with `@ID` behind it, from the element of this id on.
    A picture is taken when all has been read.
    """
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(Path(profile))
        browser.resize(1280, 760)
        for picture in pictures:
            file, _, what = picture.partition("=")
            what, _, element = what.partition("@")
            browser.resize(1280, 760)
            browser.open("about:blank")
            browser.open(link + what)
            browser.until("document.querySelector('main h1') !== null")
            time.sleep(3)
            browser.until("!document.body.innerText.includes('reading…')")
            # No taller than what is on it.
            bottom = browser.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
            browser.resize(1280, min(760, max(300, int(bottom))))
            if element:
                browser.evaluate(
                    f"document.getElementById({json.dumps(element)}).closest('section').scrollIntoView()"
                )
            time.sleep(1)
            browser.screenshot(Path(file))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
