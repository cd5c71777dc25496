"""The systemd unit and the container file: that they fit this version of the broker."""

import argparse
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from amqpstore_server.config.config import KEYS
from amqpstore_server.config.options import add_options, sources_of
from amqpstore_server.config.sources import ConfigSources
from amqpstore_server.management.resources.metrics import OPEN_ROUTES
from amqpstore_tools.verbs import serve
from tests.interop.external_client import need

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "server" / "deploy"
UNIT = DEPLOY / "amqpstore.service"
CONTAINERFILE = DEPLOY / "Containerfile"

MAX_EXPOSURE = 20
"""Tenths of systemd's exposure level, of which it calls those below 20 "OK"."""


def settings() -> dict[str, str]:
    """The unit's settings; of those that are repeated, the last one."""
    lines = UNIT.read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"\w+=", line))


def config_of(arguments: list[str], environment: dict[str, str]) -> ConfigSources:
    parser = argparse.ArgumentParser()
    add_options(parser)
    flags = sources_of(parser.parse_args(arguments)).flags
    return ConfigSources("", environment, flags)


def test_the_unit_starts_the_broker_on_its_own_directory() -> None:
    found = settings()
    command, verb, *arguments = shlex.split(found["ExecStart"])
    assert command == "/opt/amqpstore/bin/amqpstore"
    assert verb == "serve"
    config = config_of(arguments, {}).load().config
    assert config.data == f"/var/lib/{found['StateDirectory']}"


def test_the_service_is_not_restarted_in_vain() -> None:
    codes = [
        serve.EXIT_USAGE,
        serve.EXIT_NOT_A_STORE,
        serve.EXIT_DAMAGED,
        serve.EXIT_DISK_FAILED,
    ]
    assert settings()["RestartPreventExitStatus"].split() == [str(code) for code in codes]


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit as a systemd before version 253 knows it, with a command that exists."""
    need("systemd-analyze", "apt-get install systemd")
    copy = tmp_path / UNIT.name
    text = UNIT.read_text("utf-8").replace("Type=notify-reload", "Type=notify")
    copy.write_text(text.replace("/opt/amqpstore/bin/amqpstore", "/bin/true"), "utf-8")
    return copy


def test_systemd_accepts_the_unit(unit: Path) -> None:
    assert _analyze("verify", "--man=no", str(unit)) == ""


def test_systemd_refuses_a_unit_with_a_mistake(unit: Path) -> None:
    unit.write_text(unit.read_text("utf-8").replace("ProtectHome=yes", "ProtectHouse=yes"), "utf-8")
    assert "ProtectHouse" in _analyze("verify", "--man=no", str(unit))


def test_the_unit_exposes_little(unit: Path) -> None:
    limit = f"--threshold={MAX_EXPOSURE}"
    _analyze("security", "--offline=true", "--no-pager", limit, str(unit))
    unit.write_text(re.sub(r"(?m)^(Protect|System|Restrict).*$", "", unit.read_text("utf-8")))
    with pytest.raises(subprocess.CalledProcessError):
        _analyze("security", "--offline=true", "--no-pager", limit, str(unit))


def _analyze(*arguments: str) -> str:
    """Run systemd-analyze, and return what it warns of."""
    command = ["systemd-analyze", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stderr


def instructions() -> Iterator[tuple[str, str]]:
    """The instructions of the container file, and their arguments."""
    text = re.sub(r"\\\n\s*", "", CONTAINERFILE.read_text("utf-8"))
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest


def test_the_image_is_built_from_what_is_in_the_repository() -> None:
    """Copied from the context: all that the build needs, and nothing that is not there."""
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    for source in copied:
        assert (ROOT / source).exists(), source
    assert copied >= {"pyproject.toml", "constraints.txt", "amqpstore", "server", "tools"}
    # What the package's metadata name has to be there, too.
    assert copied >= {"README.md", "LICENSE"}


def test_the_image_runs_the_broker_with_a_valid_configuration() -> None:
    found = dict(instructions())
    assert found["ENTRYPOINT"] == '["amqpstore"]'
    assert found["CMD"] == '["serve"]'
    # A number, which is not root's.
    assert found["USER"] == "5672:5672"
    variables = dict(one.split("=", 1) for one in found["ENV"].split())
    del variables["PATH"]
    effective = config_of([], variables).load()
    assert effective.unknown_variables == ()
    assert effective.config.data == found["VOLUME"]
    opened = (
        *effective.config.listen,
        *effective.config.management_listen,
        *effective.config.metrics_listen,
    )
    assert [f"0.0.0.0:{port}" for port in found["EXPOSE"].split()] == [*opened]


def test_the_compose_file_fits_the_image() -> None:
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    service = content["services"]["amqpstore"]
    config_fits(service["environment"])
    assert f"/run/secrets/{service['secrets'][0]}" in service["environment"].values()
    assert service["volumes"] == [
        f"{one}:{dict(instructions())['VOLUME']}" for one in content["volumes"]
    ]
    assert service["read_only"]
    assert service["tmpfs"] == ["/tmp"]  # the tools need a place for temporary files
    assert service["restart"] == "unless-stopped"  # on-failure is not for restarts of the machine
    ports = {port.rpartition(":")[2] for port in service["ports"]}
    assert ports <= {*dict(instructions())["EXPOSE"].split()}


def test_the_password_that_compose_reads_stays_where_it_is() -> None:
    """The password is not in a commit, nor in an image, nor in a wheel."""
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    (secret,) = content["secrets"].values()
    path = (DEPLOY / secret["file"]).relative_to(ROOT).as_posix()
    assert f"/{path}" in (ROOT / ".gitignore").read_text("utf-8").split()
    assert path in (ROOT / ".dockerignore").read_text("utf-8").split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packed = project["tool"]["setuptools"]["data-files"].values()
    assert not [one for some in packed for one in some if fnmatch(path, one)]


def test_the_manifests_of_kubernetes_fit_the_image() -> None:
    service, workload = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    assert workload["kind"] == "StatefulSet"
    assert workload["spec"]["replicas"] == 1
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    config_fits({row["name"]: row["value"] for row in container["env"]})
    ports = {row["name"]: row["containerPort"] for row in container["ports"]}
    assert ports == {row["name"]: row["port"] for row in service["spec"]["ports"]}
    assert [str(port) for port in ports.values()] == dict(instructions())["EXPOSE"].split()
    mounts = {row["name"]: row["mountPath"] for row in container["volumeMounts"]}
    assert mounts["data"] == dict(instructions())["VOLUME"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert mounts["tmp"] == "/tmp"  # the tools need a place for temporary files
    assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
    user = pod["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == dict(instructions())["USER"]
    # What the probes ask is there without a login, and no alarm restarts the broker or hides it.
    probes = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")
    }
    assert {probe["port"] for probe in probes.values()} == {"metrics"}
    paths = {name: probe["path"] for name, probe in probes.items()}
    live, ready = "/health/live", "/health/ready"
    assert paths == {"startup": live, "liveness": live, "readiness": ready}
    assert {live, ready} <= {route.path for route in OPEN_ROUTES}


def config_fits(variables: dict[str, str]) -> None:
    """Fail unless the broker takes each of these variables."""
    known = {key.variable for key in KEYS.values()}
    known |= {key.file_variable for key in KEYS.values() if key.is_secret}
    assert variables.keys() <= known
