"""The scripts that run inside pages (scripts/*.js).

They watch for changes, test for quiet, make native select boxes visible, and show what dialogs
said.
None of them changes what a page holds, except while a select box is open or a banner shows.
"""

from __future__ import annotations

from pathlib import Path

QUIET = 0.05  # seconds without a request or a change that count as settled


def _script(name: str) -> str:
    return Path(__file__).with_name("scripts").joinpath(f"{name}.js").read_text("utf-8")


WATCH = _script("watch")
SETTLED = _script("settled")
SELECT_ALL = _script("select_all")
SELECT_BOX = _script("select_box")
BANNER = _script("banner")
