"""Links between the documents lead to files, and to headings, that are there."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_every_link_leads_somewhere() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    pages = [ROOT / name for name in listed.stdout.splitlines()]
    assert ROOT / "README.md" in pages
    assert [broken for page in pages if page.exists() for broken in broken_links(page)] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# Other\n\n## What `is` there?\n")
    page.write_text("# Page\n\n[a](other.md#what-is-there) [b](#page) [c](https://x.example)\n")
    assert list(broken_links(page)) == []
    page.write_text("[a](other.md#elsewhere) [b](nowhere.md) [c](#page)\n")
    assert len(list(broken_links(page))) == 3


def broken_links(page: Path) -> Iterator[str]:
    for path, anchor in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
        target = page.parent / path if path else page
        if not target.exists():
            yield f"{page}: {path}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{page}: {path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them in links."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(CODE.sub("", page.read_text("utf-8")))
    }
