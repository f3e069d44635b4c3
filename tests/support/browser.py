"""A headless Chromium over its debugging pipe: no driver, no package.

    with Browser(folder) as browser:
        browser.open(file, width=390)
        browser.evaluate("document.title")

Messages are JSON ended by a zero byte, the DevTools protocol.
"""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # there is none to be had as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
_PATIENCE = 60  # seconds


class Browser:
    """One browser with one page."""

    def __init__(self, folder: Path) -> None:
        """Start it with its profile in ``folder``."""
        assert CHROMIUM is not None
        commands, self._out = os.pipe()
        self._in, replies = os.pipe()
        # It reads from 3 and writes to 4: its ends must not lie there already.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (commands, replies)]

        def use_as_3_and_4() -> None:
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=use_as_3_and_4,
        )
        for end in (commands, replies, *ends):
            os.close(end)
        self._replies = os.fdopen(self._in, "rb", buffering=0)
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        self._replies.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events on the way are kept."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert select.select([self._in], [], [], _PATIENCE)[0], "the browser does not answer"
            chunk = self._replies.read(1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file in a window of this size, and wait until its scripts have run."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.send("Emulation.setTouchEmulationEnabled", enabled=width < 600)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())
        self.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; a promise is waited for."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """``mouseMoved``, ``mousePressed`` or ``mouseReleased`` at a place of the window."""
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def centre(self, selector: str) -> tuple[float, float]:
        """The middle of the first such element, scrolled into view."""
        x, y = self.evaluate(
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        return x, y

    def click(self, selector: str) -> None:
        """Click as a hand does: an element behind another does not get it."""
        place = self.centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, *place)

    def tap(self, selector: str, across: float = 0.5) -> None:
        """Touch an element and lift the finger again.

        Args:
            selector: the first such element, scrolled into view.
            across: where, as a share of its width.
        """
        x, y = self.centre(selector)
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x = self.evaluate(f"{box}.x + {across} * {box}.width")
        self.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def press(self, key: str) -> None:
        """Press a key such as ``ArrowRight``."""
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def complaints(self) -> Sequence[str]:
        """Errors, refusals of the page's policy, and requests to anywhere but the file."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded":
                found.append(parameters["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(url)
        return found

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """A PNG of the page."""
        image = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(image["data"]))

    def print(self, file: Path, height: float) -> None:
        """A PDF of the page as it is printed, with its headings as the outline.

        Args:
            file: is written.
            height: of the paper, in inches.
        """
        pdf = self.send(
            "Page.printToPDF",
            printBackground=False,
            paperWidth=8.3,
            paperHeight=height,
            generateTaggedPDF=True,
            generateDocumentOutline=True,
        )
        file.write_bytes(base64.b64decode(pdf["data"]))
