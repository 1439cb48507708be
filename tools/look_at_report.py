"""Looks at a report in a real browser: screenshots at two widths, light and dark, a print, and how long it opens.

    POLYSTEM_CHROMIUM=/usr/bin/chromium python -m tools.look_at_report runs/demo/report.html out/

Any Chromium will do, also a headless shell; nothing is downloaded. Speaks the DevTools protocol to it. Exits with 1
where the page asked for anything from a network, threw an error, or left a picture undrawn.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = "POLYSTEM_CHROMIUM"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
WIDTHS_PX = (390, 1280)
PIECE_PX = 1_500
START_LIMIT_S = 30.0
PAGE_LIMIT_S = 60.0
SCROLL = """(async () => {
  const pause = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  for (let at = 0; at < document.body.scrollHeight; at += 400) { window.scrollTo(0, at); await pause(); }
  window.scrollTo(0, 0); await pause(); await pause();
  const boxes = [...document.querySelectorAll(".chart")];
  return boxes.filter((box) => !box.querySelector("canvas, svg")).map((box) => box.id);
})()"""
OPENED = """(async () => {
  for (let frame = 0; frame < 3; frame += 1) await new Promise((done) => requestAnimationFrame(done));
  const [at] = performance.getEntriesByType("navigation");
  return { loaded_s: at.loadEventEnd / 1000, drawn_s: performance.now() / 1000 };
})()"""


@dataclass(slots=True)
class Page:
    """One tab. Collects what it asked for and what it complained of."""

    socket: aiohttp.ClientWebSocketResponse
    asked: list[str] = field(default_factory=lambda: [])
    complaints: list[str] = field(default_factory=lambda: [])
    _number: int = 0
    _loaded: bool = False

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command; events that come before it are looked through."""
        self._number += 1
        await self.socket.send_json({"id": self._number, "method": method, "params": params})
        while True:
            told = await self._next()
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                return told["result"]

    async def _next(self) -> dict[str, Any]:
        told: dict[str, Any] = await self.socket.receive_json(timeout=PAGE_LIMIT_S)
        self._look(told.get("method", ""), told.get("params", {}))
        return told

    def _look(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(str(details.get("exception", details).get("description", details)))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])

    async def value_of(self, script: str) -> Any:
        """What a script comes to, awaited."""
        told = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return told["result"].get("value")

    async def open(self, url: str, *, width_px: int, dark: bool) -> dict[str, Any]:
        """Loads the page afresh and tells how long it took to load, and to draw what is in sight at first."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width_px, height=900, deviceScaleFactor=1, mobile=width_px < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        await self.call("Page.navigate", url=url)
        while not self._loaded:
            await self._next()
        return await self.value_of(OPENED)

    async def screenshots(self) -> list[bytes]:
        """The whole page from top to bottom, in pieces that can be looked at."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        pieces: list[bytes] = []
        for top in range(0, int(size["height"]), PIECE_PX):
            height = min(PIECE_PX, size["height"] - top)
            clip = {"x": 0, "y": top, "width": size["width"], "height": height, "scale": 1}
            told = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
            pieces.append(base64.b64decode(told["data"]))
        return pieces

    async def print(self) -> bytes:
        """The page as it would come out of a printer."""
        told = await self.call("Page.printToPDF", printBackground=False, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(told["data"])


@asynccontextmanager
async def browser(chromium: str) -> AsyncGenerator[Page, None]:
    """A browser with one empty tab, gone again afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            address = await asyncio.to_thread(_address, Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as answer:
                    tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
                async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Network", "Runtime", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too
            await process.wait()


def _address(written: Path) -> str:
    """Where it listens; it writes the port into a file once it does."""
    ends_at = time.monotonic() + START_LIMIT_S
    while not (written.exists() and written.read_text("utf-8")):
        if time.monotonic() > ends_at:
            raise TimeoutError(f"the browser did not listen within {START_LIMIT_S:g} s")
        time.sleep(0.05)
    return f"127.0.0.1:{written.read_text('utf-8').splitlines()[0]}"


@dataclass(frozen=True, slots=True)
class Look:
    """What came of a look: files by name, lines to tell, and what was wrong."""

    files: dict[str, bytes]
    lines: list[str]
    bad: list[str]


async def look(name: str, url: str, chromium: str) -> Look:
    """At both widths, light and dark, and in print."""
    seen = Look({}, [], [])
    async with browser(chromium) as page:
        for width_px in WIDTHS_PX:
            for dark in (False, True):
                opened = await page.open(url, width_px=width_px, dark=dark)
                seen.bad.extend(f"not drawn: {each}" for each in await page.value_of(SCROLL))
                stem = f"{name}-{width_px}-{'dark' if dark else 'light'}"
                pieces = await page.screenshots()
                seen.files.update({f"{stem}-{place:02}.png": piece for place, piece in enumerate(pieces, 1)})
                seen.lines.append(
                    f"{stem}: {len(pieces)} pieces; loaded in {opened['loaded_s']:.2f} s, "
                    f"drawn in {opened['drawn_s']:.2f} s"
                )
        seen.files[f"{name}.pdf"] = await page.print()
        seen.bad.extend(f"asked for {asked}" for asked in page.asked if not asked.startswith(("file:", "data:")))
        seen.bad.extend(page.complaints)
    return seen


def chromium_here() -> str | None:
    """The browser that the environment names, or one that is installed."""
    return os.environ.get(CHROMIUM) or shutil.which("chromium") or shutil.which("chromium-headless-shell")


def main() -> int:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(description="Screenshots and a print of a report, by a real browser.")
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    chromium = chromium_here()
    if chromium is None:
        print(f"error: no browser\nhint: name a Chromium in {CHROMIUM}", file=sys.stderr)
        return 2
    seen = asyncio.run(look(given.report.stem, given.report.resolve().as_uri(), chromium))
    given.out.mkdir(parents=True, exist_ok=True)
    for name, body in seen.files.items():
        (given.out / name).write_bytes(body)
    print("\n".join(seen.lines))
    print("\n".join(seen.bad) or "nothing asked for, nothing thrown, every picture drawn", file=sys.stderr)
    return 1 if seen.bad else 0


if __name__ == "__main__":
    sys.exit(main())
