"""A real browser without a window: opens a page, keeps what it complained about and asked for.

Chromium speaks its DevTools protocol over two pipes: JSON messages, each ended by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
# Chromium reads from descriptor 3 and writes to 4; forking from a process with threads would be a risk.
LAUNCHER = """
import fcntl, os, sys
given = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 20) for number in sys.argv[1:3]]
for number, descriptor in zip((3, 4), given):
    os.dup2(descriptor, number)
os.execv(sys.argv[3], sys.argv[3:])
"""
PATIENCE = 30.0


def executable() -> str | None:
    """Where a browser is, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser process; a context manager."""

    def __init__(self) -> None:
        program = executable()
        assert program is not None, "install Chromium first"
        self._folder = tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True)
        inward, self._to = os.pipe()
        self._from, outward = os.pipe()
        command = [sys.executable, "-S", "-c", LAUNCHER, str(inward), str(outward), program, *FLAGS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={self._folder.name}", "about:blank"],
            pass_fds=(inward, outward),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inward)
        os.close(outward)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """A command's result; events that arrive before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != message["id"]:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        found: dict[str, Any] = answer["result"]
        return found

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A new page that has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.call("Page.navigate", url=address)
        deadline = time.monotonic() + PATIENCE
        while page.value("document.readyState") != "complete":
            assert time.monotonic() < deadline, f"{address} did not load"
            time.sleep(0.02)
        page.settle()
        return page

    def close(self) -> None:
        """Ends the browser and forgets its profile."""
        os.close(self._to)  # it goes when nobody speaks to it
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._folder.cleanup()

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            assert ready, "the browser does not answer"
            read = os.read(self._from, 1 << 20)
            assert read, "the browser has gone"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


class Page:
    """A page in a browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def value(self, expression: str) -> Any:
        """What a JavaScript expression amounts to."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Returns when the page has drawn two more frames."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def press(self, key: str) -> None:
        """A key, typed where the focus is."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def point(self, x: float, y: float) -> None:
        """Moves the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, full: bool = False) -> bytes:
        """The page as PNG; `full` with what lies below the window."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        return base64.b64decode(taken["data"])

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self._browser.events if event.get("sessionId") == self._session]

    @property
    def problems(self) -> list[str]:
        """Exceptions, console messages and log entries, among them violations of the page's policy."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [json.dumps(event["params"])[:500] for event in self._events if event["method"] in kinds]

    @property
    def requests(self) -> list[str]:
        """The addresses that were asked for; of data addresses the kind only."""
        asked = [
            e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"
        ]
        return [address.partition(",")[0] if address.startswith("data:") else address for address in asked]
