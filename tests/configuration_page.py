"""The table of `server/CONFIGURATION.md`, from the keys of the configuration.

`python -m tests.configuration_page` writes it, and a test holds the page against it.
"""

import json
from pathlib import Path

from amqpstore_server.config.config import KEYS
from amqpstore_server.config.keys import ConfigKey

PAGE = Path(__file__).parents[1] / "server" / "CONFIGURATION.md"
HEAD = "| key | default | values | live | meaning |\n|---|---|---|---|---|\n"


def row(key: ConfigKey) -> str:
    default = json.dumps(key.default)
    cells = (
        f"`{key.name}`",
        default if isinstance(key.default, int | float) else f"`{default}`",
        key.expected,
        "yes" if key.is_live else "",
        key.meaning,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def generated(page: str) -> str:
    """Return the page with the table that the keys give."""
    before, _, after = page.partition(HEAD)
    _, _, behind = after.partition("\n\n")
    table = "\n".join(map(row, KEYS.values()))
    return f"{before}{HEAD}{table}\n\n{behind}" if behind else f"{before}{HEAD}{table}\n"


if __name__ == "__main__":
    PAGE.write_text(generated(PAGE.read_text("utf-8")), "utf-8")
