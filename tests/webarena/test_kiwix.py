"""Wikipedia as WebArena has it: kiwix-serve over a ZIM file, leased, opened and scored. It runs
where kiwix-serve (Debian's kiwix-tools) and libzim (PyPI) are installed.
"""

import asyncio
import json
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from urllib.request import urlopen

import pytest

from jhima.browser.chromium import Browsers
from jhima.environment import Environment
from jhima.episodes import Task
from jhima.webarena.evaluators import score
from jhima.webarena.replicas import Replicas, load_replicas

writer = pytest.importorskip("libzim.writer", reason="libzim (PyPI) is not installed")
if not shutil.which("kiwix-serve"):
    pytest.skip("kiwix-serve (Debian's kiwix-tools) is not installed", allow_module_level=True)


class Article(writer.Item):
    def __init__(self, path: str, title: str, text: str) -> None:
        super().__init__()
        self.path, self.title, self.text = path, title, text

    def get_path(self):
        return self.path

    def get_title(self):
        return self.title

    def get_mimetype(self):
        return "text/html"

    def get_contentprovider(self):
        page = f"<html><head><title>{self.title}</title></head><body>{self.text}</body></html>"
        return writer.StringProvider(page)

    def get_hints(self):
        return {writer.Hint.FRONT_ARTICLE: True}


@pytest.fixture
def wikipedia(tmp_path):
    """The address of a small Wikipedia's landing page."""
    with writer.Creator(tmp_path / "wiki.zim") as zim:
        zim.set_mainpath("Landing")
        zim.add_item(Article("Landing", "Wikipedia", "<a href=Acadia>Acadia</a> on Wikipedia"))
        zim.add_item(Article("Acadia", "Acadia", "<p id=state>Acadia lies in Maine.</p>"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ["kiwix-serve", "--port", port, str(tmp_path / "wiki.zim")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            with suppress(OSError):
                urlopen(base, timeout=2).close()
                break
            time.sleep(0.1)
        with suppress(OSError):  # the form of the addresses changed between versions of kiwix
            urlopen(f"{base}/content/wiki/Landing", timeout=2).close()
            base += "/content"
        yield base + "/wiki/Landing"
    finally:
        server.terminate()
        server.wait(10)


def test_a_task_on_wikipedia_is_played_and_scored(tmp_path, wikipedia):
    article = wikipedia.replace("Landing", "Acadia")
    sites = tmp_path / "sites.json"
    sites.write_text(json.dumps({"replicas": [{"urls": {"wikipedia": wikipedia}}]}))
    locator = "document.querySelector('#state').innerText"
    target = {"url": "last", "locator": locator, "required_contents": {"must_include": ["Maine"]}}
    entry = {
        "eval_types": ["url_match", "program_html", "string_match"],
        "reference_url": article,
        "program_html": [target],
        "reference_answers": {"must_include": ["Maine"]},
    }
    task = Task("t-1", ("wikipedia",), "__WIKIPEDIA__", "In which state is Acadia?", entry)

    async def play():
        async with Replicas(load_replicas(sites)) as arena, Browsers() as browsers:
            async with Environment(arena, browsers).start(task) as (lease, session):
                idle = await score(task, lease, session, "Maine", None)
                await session.page.click("text=Acadia >> nth=-1")
                await session.observe()
                return idle.reward, (await score(task, lease, session, "Maine", None)).reward

    assert asyncio.run(play()) == (0, 1)
