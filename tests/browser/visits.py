"""A person at the studio: a browser window that remembers every request, every complaint and every answer."""

from __future__ import annotations

import base64
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

PATIENCE = 1000.0 * float(os.environ.get("LIKEWISE_PATIENCE", "120"))
"""How long heavy work may take, in ms; on two idle cores a tenth of it is enough."""

Box = dict[str, float]


def crowd() -> float:
    """How many programs wanted each core in the last minute, at least 1: by so much slower may everything be."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def cpu(process: subprocess.Popen[str]) -> float:
    """CPU-seconds that a process has used; 0 where /proc is not there."""
    file = Path(f"/proc/{process.pid}/stat")
    times = file.read_text().rpartition(")")[2].split()[11:13] if file.exists() else ("0", "0")
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


def started(command: list[str], folder: Path, *photos: Path, **settings: str) -> tuple[subprocess.Popen[str], str]:
    """Start the studio on folders of photos, with these variables in its environment; read the line of its address."""
    process = subprocess.Popen(
        [*command, "studio", "--no-open", "--port", "0", *map(str, photos)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **settings},
    )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE / 1000)
    line = process.stdout.readline().strip() if ready else ""
    if not line.startswith("http://127.0.0.1:"):
        stopped(process)
        raise AssertionError(f"likewise studio printed {line!r}, not its address")
    return process, line


def stopped(process: subprocess.Popen[str]) -> None:
    """Stop the studio as Ctrl-C does; it must go."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(60)  # on a busy machine the sample run takes a while to go
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Visit:
    """One window: `page` is Playwright's; `asked` every address it requested; `complaints` what went to its console."""

    def __init__(
        self, browser: Any, address: str, tab: str, *, width: int = 1400, colours: str = "light", touch: bool = False
    ) -> None:
        self.address, self.left = address, ""
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.bodies: list[tuple[str, Any]] = []
        self.context = browser.new_context(
            viewport={"width": width, "height": 900 if width > 600 else 844},
            color_scheme=colours,
            has_touch=touch,
            reduced_motion="reduce",
        )
        self.context.on("request", self._request)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.page.on("console", self._complaint)
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.began = time.monotonic()
        self.page.goto(address + (f"#{tab}" if tab else ""))

    def _request(self, request: Any) -> None:
        self.asked.append(request.url)
        if request.method == "POST" and request.headers.get("content-type") == "application/json":
            self.bodies.append((urlsplit(request.url).path.split("/api/")[-1], request.post_data_json))

    def _complaint(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} {message.location['url']}")

    def seconds(self) -> float:
        """Since the address was entered."""
        return time.monotonic() - self.began

    def wait(self, selector: str, *, heavy: bool = False, state: str = "visible") -> Any:
        """The first element of a selector, when it is there."""
        result = self.page.locator(selector).first
        result.wait_for(timeout=PATIENCE if heavy else None, state=state)
        return result

    def until(self, words: str, value: Any = None, *, heavy: bool = False) -> None:
        """Wait until a JavaScript expression, or a function of `value`, is true; asked from outside: eval is barred."""
        self.soon(lambda: self.page.evaluate(words, value), f"{words} (with {value!r})", heavy=heavy)

    def soon(self, check: Callable[[], bool], words: str, *, heavy: bool = False) -> None:
        """Wait until something asked from here is true: requests are recorded before their answers are drawn."""
        end = time.monotonic() + (PATIENCE if heavy else 15_000) / 1000
        while not check():
            assert time.monotonic() < end, f"never became true: {words}"
            self.page.wait_for_timeout(50)

    def reading(self, name: str, panel: str) -> str:
        """A figure of a tab by its name."""
        return str(self.page.locator(f"#panel-{panel} [data-reading='{name}']").first.inner_text())

    def box(self, selector: str) -> Box:
        """Where an element is, scrolled into view."""
        result = self.page.locator(selector).first
        result.scroll_into_view_if_needed()
        box: Box = result.bounding_box()
        return box

    def drag(self, selector: str, start: float, end: float, *, steps: int = 8) -> None:
        """Press the mouse at a share of an element's width, move, and let go at another."""
        box = self.box(selector)
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + start * box["width"], y)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end * box["width"], y, steps=steps)
        self.page.mouse.up()

    def slide(self, slider: str, value: str) -> None:
        """Drag the knob of a slider (a selector of its input) to about a value of its own scale."""
        result = self.page.locator(slider).first
        low, high, now = (float(v) for v in result.evaluate("e => [e.min, e.max, e.value]"))
        room = 1 - 18 / self.box(slider)["width"]  # the knob's middle does not reach the ends
        shares = [0.5 + ((v - low) / (high - low) - 0.5) * room for v in (now, float(value))]
        self.drag(slider, *shares)

    def choose(self, button: str, *files: Path) -> None:
        """Click a button, and choose files in the window that it opens."""
        with self.page.expect_file_chooser() as chooser:
            self.page.locator(button).first.click()
        chooser.value.set_files([str(f) for f in files])

    def drop(self, selector: str, *files: Path) -> None:
        """Drop files on an element."""
        given = [[f.name, base64.b64encode(f.read_bytes()).decode()] for f in files]
        transfer = self.page.evaluate_handle(
            """files => {
              const transfer = new DataTransfer();
              for (const [name, text] of files) {
                const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
                transfer.items.add(new File([bytes], name, {type: "image/png"}));
              }
              return transfer;
            }""",
            given,
        )
        for event in ("dragenter", "dragover", "drop"):
            self.page.locator(selector).first.dispatch_event(event, {"dataTransfer": transfer})

    def refusal(self, file: Path) -> str:
        """The server's sentence about a file that it refuses, asked without the page."""
        answer = httpx.post(f"{self.address}api/pictures", content=file.read_bytes(), headers={"X-Name": file.name})
        assert answer.status_code == 422
        return str(answer.json()["error"])

    def complains(self, panel: str, words: str) -> None:
        """Wait until a tab shows a sentence as an error."""
        self.until(
            "([panel, words]) => document.querySelector(`#panel-${panel} .failed`)?.textContent.includes(words)",
            [panel, words],
        )

    def sideways(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def forgive(self, words: str) -> None:
        """Complaints with these words were meant."""
        self.complaints = [c for c in self.complaints if words not in c]

    def check(self) -> None:
        """Only the server was asked, and shown the token once; nothing was complained of."""
        home = self.address.removesuffix("/").rpartition("/")[0] + "/"
        foreign = [url for url in self.asked if not url.startswith((home, "data:", "blob:"))]
        assert not foreign, f"requests that leave the server: {foreign}"
        assert [url.startswith(self.address) for url in self.asked].count(True) <= 1, "the token is asked with once"
        assert self.address not in self.left, "the token is in the history"
        assert not self.complaints, f"the console says: {self.complaints}"

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the window; unless something went wrong already, check what was recorded."""
        self.left = self.page.url
        self.context.close()
        if kind is None:
            self.check()
