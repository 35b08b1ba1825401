"""Fixtures that several rooms' tests share."""

import shutil

import pytest
import torch
from tokenlife import lab


@pytest.fixture(scope="module")
def one_thread():
    """Run on one thread: tensors this small only lose by being shared, most on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def team():
    """Four ranks of the lab, as fast as this machine is."""
    try:
        with lab.VirtualCluster(4) as cluster, lab.Team(cluster) as team:
            yield team
    except lab.LabUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def page(request):
    """Open an empty page in a real browser that has loaded the module's ``SCRIPT``."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright: the page is not tried")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except api.Error as error:
            pytest.skip(f"no browser: {str(error).splitlines()[0]}")
        page = browser.new_page()
        page.goto("about:blank")
        page.add_script_tag(path=str(request.module.SCRIPT))
        yield page
        browser.close()
