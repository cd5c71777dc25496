"""Tests of which Java Spark gets, and of what stands in front of it."""

import os
import subprocess
from pathlib import Path

from amqpstore_tools.spark.java import java_home

_ASKED = "--add-modules=jdk.incubator.vector"


def test_without_a_java_of_the_system_there_is_one_that_spark_starts_by(tmp_path: Path) -> None:
    # What is in PATH is too old.
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o700)
    home = java_home({"PATH": str(tmp_path)})
    java = os.path.join(home, "bin", "java")
    # Spark asks for the module always.
    asked = subprocess.run([java, _ASKED, "-version"], capture_output=True, text=True, check=True)
    assert "version" in asked.stderr
    assert "incubator" not in asked.stderr


def test_a_java_of_the_system_comes_first_and_is_made_quiet(tmp_path: Path) -> None:
    home = tmp_path / "it's here"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(
        "#!/bin/sh\n"
        'test "$1" = -version && echo \'openjdk version "21.0.1"\' >&2 && exit\n'
        'printf "%s|" "$@"\n'
    )
    java.chmod(0o700)
    environment = {"JAVA_HOME": str(home), "PATH": ""}
    assert java_home(environment) == str(home)
    quiet = os.path.join(java_home(environment, is_quiet=True), "bin", "java")
    said = subprocess.run(
        [quiet, "-a", _ASKED, "", "b c"], capture_output=True, text=True, check=True
    )
    assert said.stdout == "-a||b c|"
