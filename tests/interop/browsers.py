"""A real browser, and a user in it."""

from collections.abc import Generator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.interop.external_client import need

CHROMIUM = "/usr/bin/chromium"

expect.set_options(timeout=60_000)  # instead of five seconds


@contextmanager
def chromium() -> Generator[Browser]:
    """A browser without a window; the test is skipped where there is none."""
    need("chromium", "apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def heard(page: Page) -> list[str]:
    """Collect errors of a page, and the dialogs that a script of a message would open."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))

    def listen(message: object) -> None:
        if getattr(message, "type", "") in ("error", "warning"):
            complaints.append(str(getattr(message, "text", "")))

    page.on("console", listen)
    return complaints


def log_in(page: Page, site: str, user: str = "guest", password: str = "guest") -> None:
    page.goto(f"{site}/login")
    log_in_here(page, user, password)


def log_in_here(page: Page, user: str = "guest", password: str = "guest") -> None:
    page.fill("input[name=user]", user)
    page.fill("input[name=password]", password)
    # A page that is closed before it is there may hang the browser.
    with page.expect_navigation():
        page.click("text=Log in >> visible=true >> nth=-1")
