"""A headless Chromium over its DevTools protocol, as far as the page's tests need it."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import websocket

BOUND_S = 60.0


def executable() -> str:
    """The browser; "" where there is none."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
    )


class Browser:
    """One page of one browser. errors: what its console said that is an error or a warning of its policy."""

    def __init__(self, folder: Path) -> None:
        command = [executable(), "--headless=new", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
        command += ["--remote-allow-origins=*", f"--user-data-dir={folder}", "--disable-dev-shm-usage"]
        # Chromium refuses its sandbox to root, which containers often are.
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.socket: Any = None
        port = folder / "DevToolsActivePort"
        end = time.monotonic() + BOUND_S
        while not (port.exists() and port.read_text().count("\n")):
            if self.process.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError("the browser does not start")
            time.sleep(0.05)
        number = int(port.read_text().split("\n")[0])
        with urllib.request.urlopen(f"http://127.0.0.1:{number}/json", timeout=BOUND_S) as answer:
            target = next(one for one in json.load(answer) if one["type"] == "page")
        self.socket = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=BOUND_S)
        self.number, self.errors, self.loaded = 0, [], False
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        if self.socket is not None:
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def send(self, method: str, **params: Any) -> Any:
        """One command and its result."""
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        name, params = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif name == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.errors.append(" ".join(str(one.get("value") or one.get("description")) for one in params["args"]))
        elif name == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.errors.append(params["entry"]["text"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif name == "Page.loadEventFired":
            self.loaded = True

    def open(self, url: str) -> None:
        """Open an address and wait until the page says that it is drawn."""
        self.send("Page.navigate", url=url)
        self.wait("document.documentElement?.dataset.ready === 'yes'")
        self.settle()

    def settle(self) -> None:
        """Until what was asked to be drawn is."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 60)))")

    def wait(self, condition: str) -> None:
        """Until an expression holds."""
        end = time.monotonic() + BOUND_S
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition}: not within {BOUND_S:g} s; console: {self.errors}")
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", script))
        return found["result"].get("value")

    def look(self, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Width of the window, colour scheme and medium."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", media=media, features=scheme)
        self.settle()

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000), "scale": 1}
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def click(self, x: float, y: float) -> None:
        """A click of the mouse at a place of the window."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def hover(self, x: float, y: float) -> None:
        """The mouse at a place of the window."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.settle()

    def key(self, name: str) -> None:
        """A key."""
        code = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            extra = text if kind == "keyDown" else {}
            self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=code, **extra)
        self.settle()
