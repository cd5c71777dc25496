"""Users who may not look into a store are told that, whichever verb they use."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.unit.offline.stores import Command
from tests.unit.offline.test_wrong_kinds import without_rights

VERBS = (
    ("check", "DIR"),
    ("inspect", "DIR"),
    ("export", "DIR", "OUT.jsonl"),
    ("copy", "DIR", "OUT"),
    ("repair", "DIR", "--plan", "OUT.json"),
    ("repair", "DIR", "--apply", "OUT.json"),
    ("repair", "DIR", "--undo"),
    ("compact", "DIR"),
    ("upgrade", "DIR"),
    ("import", "DIR", "FILE"),
    ("restore", "COPY", "DIR"),
    ("restore", "DIR", "OUT"),
    ("users", "list", "--data", "DIR"),
)


@pytest.mark.parametrize("closed", ["store", "within"])
def test_a_store_that_this_user_may_not_look_into_is_not_called_something_else(
    busy: str, command: Command, closed: str
) -> None:
    # pytest's directories are closed to other users.
    with tempfile.TemporaryDirectory() as outside:
        os.chmod(outside, 0o777)
        within = Path(outside, "within")
        store, copy = str(within / "store"), f"{outside}/copy"
        shutil.copytree(busy, store)
        assert command("copy", busy, copy, "--no-links").code == 0
        exported, plan = f"{outside}/file.jsonl", f"{outside}/OUT.json"
        assert command("export", busy, exported).code == 0
        assert command("repair", busy, "--plan", plan).code == 0
        for folder, _, names in os.walk(outside):
            for name in ("", *names):
                os.chmod(os.path.join(folder, name), 0o777)
        places = {"DIR": store, "COPY": copy, "FILE": exported}
        for verb in VERBS:
            # All that they import, which the other user may not be allowed to read.
            gone = f"{outside}/gone"
            command(*(gone if one in places else one.replace("OUT", gone) for one in verb))
        is_closed = {"store": store, "within": str(within)}[closed]
        os.chmod(is_closed, 0)
        try:
            for verb in VERBS:
                with without_rights():
                    done = command(
                        *(places.get(one, one.replace("OUT", f"{outside}/OUT")) for one in verb)
                    )
                assert done.code == 5, (verb, done)
                assert f"{is_closed}" in done.err, (verb, done)
                assert (
                    "Permission denied. Run it as the owner of the store, or as root." in done.err
                )
        finally:
            os.chmod(is_closed, 0o777)
