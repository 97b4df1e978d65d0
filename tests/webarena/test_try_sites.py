"""The dry run of a sites.json on a real server, in a real Chromium."""

import json
import subprocess
import sys

from shop import Shop


def test_each_site_is_tried_and_told_of_in_one_table(tmp_path):
    with Shop() as shop, Shop() as notes:
        notes.content = "Notes"
        wrong = {"url": notes.url, "health": "Something else"}
        replica = {"urls": {"shopping": shop.url}, "sites": {"notes": wrong}}
        path = tmp_path / "sites.json"
        path.write_text(json.dumps({"replicas": [replica]}))
        command = [sys.executable, "-m", "jhima.webarena.try_sites", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    head, *lines = done.stdout.splitlines()
    assert head.split() == "site address answers logs in resets REST".split()
    rows = {row.split()[0]: row.split()[2:] for row in lines}
    assert rows == {"notes": ["NO", "-", "none", "-"], "shopping": ["yes", "yes", "none", "yes"]}
    assert done.returncode == 1
    assert done.stderr.strip() == "notes: its first page does not say 'Something else'"
