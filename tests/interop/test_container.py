"""The image of the container file: built, run without rights, killed, stopped and checked."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pika
import pytest
import yaml
from pika.exceptions import ConnectionClosedByBroker

from tests.interop.external_client import missing, need
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "server" / "deploy"
CONTAINERFILE = "server/deploy/Containerfile"
IMAGE = "localhost/amqpstore-test"
LOCAL_BASE = "localhost/amqpstore-test-base"
COUNT = 300

# For pip, where it reaches its index through a proxy with a certificate of its own.
PIP_FILES = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")

# How containers run: as they do by default, or where that is not possible.
WAYS: tuple[tuple[str, ...], ...] = (
    ("podman", "run"),
    ("podman", "--runtime=runc", "run", "--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"),
)

pytestmark = pytest.mark.long


def podman(*arguments: str, check: bool = True, timeout_s: float = 120) -> str:
    """Returns what it wrote to stdout."""
    return ran(["podman", *arguments], check=check, timeout_s=timeout_s).stdout


def ran(
    command: list[str], *, check: bool = True, timeout_s: float = 120
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert not check or done.returncode == 0, (
        f"{command}: {done.stdout[-500:]}{done.stderr[-2000:]}"
    )
    return done


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image that the container file names, or one made of Debian's packages."""
    for command in ("podman", "buildah"):
        need(command, f"apt-get install {command}")
    name = re.findall(r"(?m)^ARG BASE=(\S+)$", (ROOT / CONTAINERFILE).read_text("utf-8"))[0]
    if ran(["podman", "pull", "-q", name], check=False).returncode == 0:
        return str(name)
    if not shutil.which("mmdebstrap"):
        missing(f"cannot pull {name}, and mmdebstrap is not installed")
    directory = tmp_path_factory.mktemp("base")
    packages = "--include=python3,python3-venv,ca-certificates"
    tar = str(directory / "base.tar")
    ran(["mmdebstrap", "--variant=minbase", packages, "bookworm", tar], timeout_s=600)
    (directory / "Containerfile").write_text(
        "FROM scratch\nADD base.tar /\nRUN ln -s /usr/bin/python3 /usr/local/bin/python\n"
    )
    build = ["buildah", "build", "--isolation=chroot", "-t", LOCAL_BASE, str(directory)]
    ran(build, timeout_s=900)
    return LOCAL_BASE


@pytest.fixture(scope="module")
def image(base: str) -> Iterator[str]:
    mounts = [f"--volume={file}:{file}:ro" for file in PIP_FILES if os.path.exists(file)]
    build = ["buildah", "build", "--format=docker", "--isolation=chroot", "--network=host"]
    ran(
        [*build, *mounts, f"--build-arg=BASE={base}", "-t", IMAGE, "-f", CONTAINERFILE, "."],
        timeout_s=900,
    )
    yield IMAGE
    podman("rmi", "--force", IMAGE)


@pytest.fixture(scope="module")
def way(image: str) -> list[str]:
    """Return the command that runs containers here."""
    for way in WAYS:
        done = ran([*way, "--rm", image, "--version"], check=False)
        if done.returncode == 0:
            assert re.fullmatch(r"\d+\.\d+\.\d+\n", done.stdout)
            return list(way)
    pytest.skip(f"podman cannot run containers here: {done.stderr}")


@contextmanager
def container(way: list[str], image: str, *options: str) -> Iterator[str]:
    name, volume = f"amqpstore-test-{os.getpid()}", f"amqpstore-test-{os.getpid()}"
    port = "--publish=127.0.0.1::5672"
    where = f"--volume={volume}:/var/lib/amqpstore"
    ran([*way, "--detach", f"--name={name}", port, where, *options, image])
    try:
        yield name
    finally:
        podman("rm", "--force", "--time=0", name)
        podman("volume", "rm", "--force", volume)


def log_of(name: str) -> str:
    done = ran(["podman", "logs", name])
    return done.stdout + done.stderr


def wait_until_ready(name: str, times: int = 1) -> None:
    wait_until(lambda: log_of(name).count(" ready: ") == times, lambda: log_of(name))


def connected(name: str) -> pika.BlockingConnection:
    password = re.findall(r"user administrator added, password (\S+)", log_of(name))[0]
    port = int(podman("port", name, "5672").rpartition(":")[2])
    login = pika.PlainCredentials("administrator", password)
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login))


def test_confirmed_messages_survive_the_container(way: list[str], image: str) -> None:
    rights = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges")
    with container(way, image, *rights) as name:
        wait_until_ready(name)
        with connected(name) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.confirm_delivery()
            for number in range(COUNT):
                body = b"%d" % number
                channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
        podman("kill", "--signal=KILL", name)
        podman("start", name)
        wait_until_ready(name, 2)
        with pytest.raises(ConnectionClosedByBroker), connected(name) as connection:
            connection.channel().basic_consume("q", lambda *_: None)
            podman("stop", "--time=60", name)
        assert podman("inspect", name, "--format={{.State.ExitCode}}").strip() == "0"
        assert "event=stopped" in log_of(name)
        podman("start", name)
        wait_until_ready(name, 3)
        with connected(name) as connection:
            channel = connection.channel()
            for number in range(COUNT):
                assert channel.basic_get("q", auto_ack=True)[2] == b"%d" % number


def test_the_broker_runs_without_rights_on_a_directory_of_its_own(
    way: list[str], image: str
) -> None:
    with container(way, image, "--memory=256m") as name:
        wait_until_ready(name)
        assert podman("exec", name, "id", "-u", "-n").strip() == "amqpstore"
        assert podman("exec", name, "id", "-u").strip() == "5672"
        first = podman("exec", name, "cat", "/proc/1/cmdline").split("\0")
        assert first[-3:] == ["/opt/amqpstore/bin/amqpstore", "serve", ""]
        # Nothing that installs is left in it.
        assert ran(["podman", "exec", name, "python", "-m", "pip"], check=False).returncode == 1
        # The limit of the container counts, not the memory of the machine.
        ask = "from amqpstore_server.loop.alarms import available_bytes; print(available_bytes())"
        python = "/opt/amqpstore/bin/python"
        assert int(podman("exec", name, python, "-c", ask)) == 256 << 20


def test_the_health_check_asks_the_broker(way: list[str], image: str) -> None:
    with container(way, image) as name:
        wait_until_ready(name)

        def is_healthy() -> bool:
            return ran(["podman", "healthcheck", "run", name], check=False).returncode == 0

        assert is_healthy()
        podman("exec", name, "sh", "-c", "mv /var/lib/amqpstore/admin.sock /tmp/")
        assert not is_healthy()


def test_operators_use_the_commands_in_the_container(way: list[str], image: str) -> None:
    with container(way, image) as name:
        wait_until_ready(name)
        podman("exec", name, "amqpstore", "users", "add", "anna", "--no-password")
        users = json.loads(podman("exec", name, "amqpstore", "users", "list", "--json"))
        assert {"administrator", "anna"} <= {user["name"] for user in users["users"]}


def test_a_user_without_an_entry_may_run_it(way: list[str], image: str) -> None:
    """The broker runs as any user number in the group of root, as OpenShift gives them to pods."""
    with container(way, image, "--user=1000770000:0") as name:
        wait_until_ready(name)
        with connected(name) as connection:
            connection.channel().queue_declare("q", durable=True)
        assert (
            podman("exec", name, "stat", "-c", "%u", "/var/lib/amqpstore/STORE") == "1000770000\n"
        )


def test_a_directory_of_somebody_else_is_refused_with_both_names(
    way: list[str], image: str, tmp_path: Path
) -> None:
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    done = ran([*way, "--rm", f"--volume={directory}:/var/lib/amqpstore", image], check=False)
    assert done.returncode == 4
    said = "it belongs to uid 0, and the broker runs as uid 5672: run `chown -R 5672:5672` on it"
    assert said in done.stderr


def test_the_manifest_of_kubernetes_starts_a_broker_that_its_probes_find_ready(
    way: list[str], image: str, tmp_path: Path
) -> None:
    """Podman runs the manifest's pod alone, as it does not know StatefulSets."""
    _, workload = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))
    pod = workload["spec"]["template"]
    (container_spec,) = pod["spec"]["containers"]
    container_spec["image"] = image
    # The limits of this machine's containers are not podman's to set.
    container_spec["resources"] = {}
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "amqpstore-test"}}
    pod["spec"]["volumes"].append(claim)
    # The ports that the broker listens on are reachable inside only.
    name = f"amqpstore-test-{os.getpid()}"
    pod = {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {"name": name}}
    password = base64.b64encode(b"secret").decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "amqpstore"}}
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump_all([{**secret, "data": {"password": password}}, pod]))
    podman("kube", "play", str(file))
    try:
        inside = f"{name}-amqpstore"
        wait_until_ready(inside)
        for kind in ("startup", "liveness", "readiness"):
            path = container_spec[f"{kind}Probe"]["httpGet"]["path"]
            ask = f"from urllib.request import urlopen; urlopen('http://127.0.0.1:15692{path}')"
            podman("exec", inside, "/opt/amqpstore/bin/python", "-c", ask)
        users = json.loads(podman("exec", inside, "amqpstore", "users", "list", "--json"))
        assert [user["name"] for user in users["users"]] == ["admin"]
    finally:
        podman("kube", "down", str(file), check=False)
        podman("volume", "rm", "--force", "amqpstore-test", check=False)
        podman("secret", "rm", "amqpstore", check=False)
