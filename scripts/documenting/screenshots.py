"""Take the pictures of docs/images: `scripts/docs --screenshots`.

They show one run of the digits example, whose trainer is killed twice: its terminal, its report,
and TensorBoard. Chromium takes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
KILLS = ("--fault", "kill trainer at step 600", "--fault", "kill trainer at step 1100")
LAUNCH = ("launch", "--logdir", "runs/digits", *KILLS, "procsv.examples.digits", "--steps", "1500", "--step-ms", "20")
COLUMNS, ROWS = 100, 24
SHOWN_UNTIL = r"training again at step [\s\S]*? left"  # where the picture of the terminal ends
COLORS = 128  # per picture, which saves two thirds of its bytes
START_S_MAX = 120.0
PICTURE_S_MAX = 300.0
TRIES = 5
CURVE = r"fill: none; stroke: rgb[\s\S]*"  # in TensorBoard's page
CHROMIUM = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *(
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--virtual-time-budget=60000",
        "--dump-dom",
    ),
    "--disable-3d-apis",  # with WebGL, TensorBoard draws its curves some time after the picture
)
DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"


def run_in_terminal(argv: list[str], cwd: Path) -> str:
    """Return what a program writes to a terminal of COLUMNS and ROWS."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}
    process = subprocess.Popen(argv, cwd=cwd, env=env, stdin=its, stdout=its, stderr=its, start_new_session=True)
    os.close(its)
    written = b""
    with contextlib.suppress(OSError):  # raised when the other side of the terminal is closed
        while part := os.read(ours, 65536):
            written += part
    os.close(ours)
    if process.wait():
        raise SystemExit(f"{shlex.join(argv)} failed: {written.decode()}")
    return written.decode()


def draw_terminal(written: str) -> str:
    """Return an SVG of the terminal as it was soon after the first restart."""
    shown = re.search(rf"^[\s\S]*?{SHOWN_UNTIL}[^\r]*", written)
    assert shown, written
    lines = [
        line.rpartition("\r\x1b[J")[2] for line in shown[0].split("\r\n")
    ]  # the status line is erased and rewritten
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi("\n".join([f"$ procsv {shlex.join(LAUNCH)}", *lines])))
    drawn = console.export_svg(title="procsv launch", unique_id="terminal")
    return re.sub(r"@font-face \{[\s\S]*?\}", "", drawn)  # no font from another host


def take_picture(
    chromium: str, url: str, name: str, size: tuple[int, int], theme: str = LIGHT, drawn: str = "</svg>"
) -> None:
    """`drawn`: text found in the page once it is complete; until then the picture is taken again."""
    path = IMAGES / f"{name}.png"
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            options = [
                theme,
                f"--user-data-dir={profile}",
                f"--screenshot={path}",
                f"--window-size={size[0]},{size[1]}",
            ]
            argv = [chromium, *CHROMIUM, *options, url]
            page = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=PICTURE_S_MAX).stdout
        if re.search(drawn, page):
            Image.open(path).convert("RGB").quantize(COLORS).save(path, optimize=True)
            return
    raise SystemExit(f"{url} has no {drawn} after {TRIES} pictures")


@contextlib.contextmanager
def tensorboard(logdir: Path) -> Iterator[str]:
    """Yield the address of a TensorBoard that has read `logdir`."""
    argv = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+/", line)))
        until_s, pause = time.monotonic() + START_S_MAX, threading.Event()
        while b"procsv/attempt" not in urllib.request.urlopen(f"{address}data/plugin/scalars/tags").read():
            if time.monotonic() > until_s:
                raise SystemExit(f"TensorBoard finds no procsv/attempt in {logdir}")
            pause.wait(0.5)
        yield address
    finally:
        process.terminate()
        process.wait()


def take_screenshots() -> int:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None or importlib.util.find_spec("tensorboard") is None:
        missing = "Chromium on the PATH (apt-get install chromium)" if chromium is None else "TensorBoard"
        print(f"scripts/docs --screenshots needs {missing}", file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    procsv = [sys.executable, "-m", "procsv"]
    with tempfile.TemporaryDirectory() as place:
        (IMAGES / "terminal.svg").write_text(draw_terminal(run_in_terminal([*procsv, *LAUNCH], Path(place))))
        report = Path(place) / "report.html"
        run_in_terminal([*procsv, "report", "runs/digits", "--html", str(report)], Path(place))
        for theme, setting in (("light", LIGHT), ("dark", DARK)):
            take_picture(chromium, report.as_uri(), f"report-{theme}-1100", (1100, 900), setting)
            take_picture(chromium, report.as_uri(), f"report-{theme}-400", (400, 900), setting)
        with tensorboard(Path(place) / "runs" / "digits") as address:
            marks = "?darkMode=false&smoothing=0&tagFilter=loss%7Cattempt#timeseries"
            take_picture(chromium, address + marks, "tensorboard", (1300, 620), drawn=2 * CURVE)
            take_picture(chromium, f"{address}#text", "tensorboard-ends", (1300, 450))
    made = sum(path.stat().st_size for path in IMAGES.iterdir())
    print(f"{IMAGES}: {made / 1024:.0f} KiB")
    return 0
