"""Fixtures of the browser's tests: two small sites, and Chromium with short deadlines."""

from dataclasses import replace

import pytest
from browsing import Site

from jhima.browser.chromium import Browsers
from jhima.browser.lease import Lease


@pytest.fixture(scope="session")
def site():
    site, other = Site(), Site()
    # Another local port is a foreign host too.
    site.other, site.foreign = other, f"127.0.0.1:{other.server_port}"
    yield site
    for server in (site, other):
        server.over.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="session")
def lease(site):
    return Lease({"shopping": site.url}, {"X-Pocket-World": "w1"}, {}, (336, 336))


@pytest.fixture(scope="session")
def browsers(loop):
    """Deadlines short enough for tests of failures, long enough for a busy machine."""
    browsers = Browsers(operation=6.0, navigation=2.0, quiet=1.0)
    loop.run_until_complete(browsers.__aenter__())
    yield browsers
    loop.run_until_complete(browsers.__aexit__())


@pytest.fixture
def play(loop, browsers, lease, site):
    """Runs `scenario(session)` in a fresh session that shows `path`."""

    def play(scenario, path="", viewport=(336, 336)):
        async def one():
            async with browsers.session(replace(lease, viewport=viewport)) as session:
                if path:
                    await session.goto(site.url + path)
                return await scenario(session)

        return loop.run_until_complete(one())

    return play
