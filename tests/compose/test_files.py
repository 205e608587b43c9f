"""The container files say what they must, checked without an engine."""

import ast
import fnmatch
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scheduler_service.demo.containers.settings import GatewaySettings, WorkerSettings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
SETTINGS = {"worker": WorkerSettings, "gateway": GatewaySettings}


def _instructions(path: Path) -> list[tuple[str, str]]:
    """Returns (instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


DOCKERFILE = _instructions(ROOT / "scheduler_service" / "Dockerfile")


def _last_stage() -> list[tuple[str, str]]:
    start = max(number for number, (name, _) in enumerate(DOCKERFILE) if name == "FROM")
    return DOCKERFILE[start:]


def _tool(name: str) -> str:
    """Returns the path of an optional tool: beside the interpreter or on the path."""
    found = shutil.which(name, path=Path(sys.executable).parent) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def test_compose_has_a_scheduler_two_workers_and_a_gateway():
    """One scheduler, two workers, one gateway; a named volume holds the decision log."""
    replicas = {
        name: service.get("deploy", {}).get("replicas", 1) for name, service in SERVICES.items()
    }

    assert replicas == {"scheduler": 1, "worker": 2, "gateway": 1}
    assert set(COMPOSE["volumes"]) == {"log"}
    assert SERVICES["scheduler"]["volumes"] == ["log:/var/lib/fairsched"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened_and_bounded(name):
    """No container can write to its image, gain rights, or take more than its share."""
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {mount.split(":")[0] for mount in service["tmpfs"]} == {"/tmp"}
    assert {"cpus", "memory", "pids"} == set(limits)
    assert service["restart"] == "unless-stopped"
    assert "max-size" in service["logging"]["options"]
    assert not {"privileged", "network_mode", "pid", "cap_add", "user"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_has_a_grace_period(name):
    """A stop leaves time to finish: Docker's own ten seconds are stated or exceeded."""
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= 10


def test_start_order_follows_health():
    """Workers start behind a healthy scheduler, the gateway behind healthy workers."""
    waits = {
        name: {
            on: condition["condition"] for on, condition in service.get("depends_on", {}).items()
        }
        for name, service in SERVICES.items()
    }

    assert waits == {
        "scheduler": {},
        "worker": {"scheduler": "service_healthy"},
        "gateway": {"scheduler": "service_healthy", "worker": "service_healthy"},
    }
    assert all("healthcheck" in SERVICES[name] for name in ("worker", "gateway"))
    assert any(name == "HEALTHCHECK" for name, _ in _last_stage())


def test_ports_are_published_on_loopback_only():
    """Plaintext leaves neither the compose network nor this machine."""
    published = {
        name: [port.split(":")[0] for port in service["ports"]]
        for name, service in SERVICES.items()
        if "ports" in service
    }

    assert published == {"scheduler": ["127.0.0.1", "127.0.0.1"]}
    assert "--allow-plaintext" in SERVICES["scheduler"]["command"]


@pytest.mark.parametrize("name", SETTINGS)
def test_demo_containers_run_what_exists(name):
    """Each entry point names a module, and each variable a setting it knows."""
    service = SERVICES[name]
    module = service["entrypoint"][-1]
    variables = {key.removeprefix("DEMO_").lower() for key in service["environment"]}
    settings = SETTINGS[name](
        **{key.removeprefix("DEMO_").lower(): v for key, v in service["environment"].items()}
    )

    assert service["entrypoint"][:2] == ["python", "-m"]
    spec = importlib.util.find_spec(module)
    assert 'if __name__ == "__main__":' in Path(spec.origin).read_text()
    assert variables <= set(SETTINGS[name].model_fields)
    assert settings.target == "scheduler:50051"


def test_sign_of_life_is_the_file_the_programs_touch():
    """The health check looks at the file that worker and gateway touch."""
    for name in SETTINGS:
        command = SERVICES[name]["healthcheck"]["test"][1]
        assert str(SETTINGS[name].model_fields["alive_file"].default) in command


def test_image_runs_unprivileged_and_gets_signals():
    """The last stage has a numeric user, an exec-form entry point and a volume for the log."""
    stage = dict(_last_stage())

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage["USER"])
    assert stage["ENTRYPOINT"] == '["fairsched"]'
    assert ast.literal_eval(stage["CMD"])[0] == "serve"
    assert stage["VOLUME"] == "/var/lib/fairsched"
    assert stage.get("STOPSIGNAL", "SIGTERM") == "SIGTERM"


def test_image_installs_only_pinned_wheels():
    """Every `pip install` names the constraints, or takes the wheel just built and no index."""
    runs = [text for name, text in DOCKERFILE if name == "RUN"]
    installs = [
        shlex.split(command)
        for run in runs
        for command in run.split("&&")
        if re.search(r"\bpip\b.*\binstall\b", command)
    ]

    assert len(installs) == 3
    for install in installs:
        assert {"--constraint", "--only-binary"} <= set(install) or "--no-index" in install


def test_image_needs_no_buildkit():
    """Nothing in the Dockerfile is refused by the classic builder."""
    text = (ROOT / "scheduler_service" / "Dockerfile").read_text()

    assert not re.search(r"^#\s*(syntax|escape|check)\s*=", text, re.MULTILINE)
    for name, arguments in DOCKERFILE:
        flags = [word for word in arguments.split() if word.startswith("--")]
        if name in {"RUN", "ADD"}:
            assert not any(flag.startswith(("--mount", "--network", "--link")) for flag in flags)
        if name in {"COPY", "FROM"}:
            assert all(flag.startswith(("--from=", "--chown=")) for flag in flags)
        assert "<<" not in arguments


def test_build_context_holds_what_is_copied_and_little_else():
    """What the Dockerfile copies passes `.dockerignore`; histories and environments do not."""
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    copied = [
        source
        for name, arguments in DOCKERFILE
        if name == "COPY" and "--from=" not in arguments
        for source in arguments.split()[:-1]
    ]

    assert patterns[0] == "*"
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in patterns
    for unwanted in (".git", ".venv", "tests", "docker-compose.yml"):
        assert not any(fnmatch.fnmatch(unwanted, p[1:]) for p in patterns if p.startswith("!"))


def test_hadolint_finds_nothing():
    """The linter of Dockerfiles has nothing to say."""
    found = subprocess.run(
        [_tool("hadolint"), "scheduler_service/Dockerfile"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (found.returncode, found.stdout) == (0, "")


def test_compose_accepts_the_file():
    """Compose itself reads the file without a complaint."""
    found = subprocess.run(
        [_tool("docker-compose"), "config", "--quiet"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (found.returncode, found.stderr) == (0, "")
