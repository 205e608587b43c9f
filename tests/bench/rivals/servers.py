"""The servers and clients of the rivals: found, installed on demand, started on loopback."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.bench.machine import MissingTools, cache_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
_START_SECONDS = 30.0
_PACKAGES = {
    "redis-server": "redis-server",
    "initdb": "postgresql",
    "npm": "npm",
    "hiredis": "libhiredis-dev",
}


def _postgres_program(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


def find(name: str, *, install: bool) -> str:
    """Returns the path of a server's program.

    Raises:
        MissingTools: It is not there and may not, or cannot, be installed.
    """
    look: Callable[[str], str | None] = (
        _postgres_program if name in {"initdb", "postgres", "pgbench", "psql"} else shutil.which
    )
    found = look(name)
    if found is None and install:
        _apt(_PACKAGES.get(name, "postgresql"))
        found = look(name)
    if found is None:
        raise MissingTools(
            f"{name} is not installed; --install installs it, or: "
            f"apt-get install {_PACKAGES.get(name, 'postgresql')}"
        )
    return found


def _apt(package: str) -> None:
    command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def python(*, install: bool) -> str:
    """Returns the interpreter of the environment that the Python rivals live in.

    Raises:
        MissingTools: It is not there and may not be made.
    """
    folder = cache_folder() / "rivals-venv"
    wanted = HERE / "requirements.txt"
    done = folder / ".requirements"
    if not (done.exists() and done.read_text() == wanted.read_text()):
        if not install:
            raise MissingTools(
                f"The rivals' Python packages are not installed in {folder}: --install"
            )
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "-r", str(wanted)]
        subprocess.run(pip, check=True)
        done.write_text(wanted.read_text())
    return str(folder / "bin" / "python")


def node_folder(*, install: bool) -> Path:
    """Returns the folder with BullMQ and its benchmark.

    Raises:
        MissingTools: It is not there and may not be installed.
    """
    if shutil.which("node") is None:
        raise MissingTools("node is not installed")
    folder = cache_folder() / "bullmq"
    folder.mkdir(exist_ok=True)
    fresh = (HERE / "bullmq" / "package.json").read_text()
    manifest = folder / "package.json"
    same = manifest.exists() and manifest.read_text() == fresh
    shutil.copy(HERE / "bullmq" / "bench.mjs", folder)
    if not (same and (folder / "node_modules" / "bullmq").exists()):
        if not install:
            raise MissingTools(f"BullMQ is not installed in {folder}: --install")
        manifest.write_text(fresh)
        command = [find("npm", install=install), "install", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def redis_load(*, install: bool) -> str:
    """Builds the compiled Redis client and returns its path.

    Raises:
        MissingTools: The library is missing.
    """
    found = subprocess.run(["pkg-config", "--exists", "hiredis"], check=False).returncode == 0
    if not found and install:
        _apt(_PACKAGES["hiredis"])
        found = subprocess.run(["pkg-config", "--exists", "hiredis"], check=False).returncode == 0
    if not found:
        raise MissingTools(f"hiredis is not installed: apt-get install {_PACKAGES['hiredis']}")
    source, program = HERE / "redis" / "load.cc", cache_folder() / "redis-load"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "hiredis"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        include = f"-I{HERE.parent / 'loadgen'}"
        subprocess.run(
            ["g++", "-O2", "-std=c++17", include, str(source), "-o", str(program), *flags],
            check=True,
        )
    return str(program)


class Server:
    """A rival's server: a process, a temporary folder."""

    def __init__(self, name: str, root: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=root))
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._stop_signal = signal.SIGTERM

    def _start(self, command: list[str], ready: Callable[[], bool], stop: signal.Signals) -> Self:
        self._stop_signal = stop
        with (self.folder / "output.txt").open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        waiting = threading.Event()
        for _ in range(int(_START_SECONDS / 0.02)):
            if ready():
                return self
            if self.process.poll() is not None:
                break
            waiting.wait(0.02)
        told = (self.folder / "output.txt").read_text(errors="replace")[-1000:]
        self.__exit__()
        raise MissingTools(f"{command[0]} did not start: {told}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(self._stop_signal)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(Server):
    """Redis with an append-only file.

    Args:
        root: The disk to measure.
        appendfsync: `always` or `everysec`.
        install: Whether it may be installed.
    """

    def __init__(self, root: Path, appendfsync: str, *, install: bool) -> None:
        program = find("redis-server", install=install)
        super().__init__("redis", root)
        self.port = _free_port()
        self._start(
            [
                program,
                str(HERE / "redis" / "redis.conf"),
                "--port",
                str(self.port),
                "--dir",
                str(self.folder),
                "--appendfsync",
                appendfsync,
            ],
            lambda: _answers(self.port),
            signal.SIGTERM,
        )


class Postgres(Server):
    """PostgreSQL on a socket in its folder, user `bench`."""

    def __init__(self, root: Path, *, install: bool) -> None:
        initdb = find("initdb", install=install)
        super().__init__("postgres", root)
        self._as_user: list[str] = []
        if os.geteuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._as_user = [
                "setpriv",
                f"--reuid={account.pw_uid}",
                f"--regid={account.pw_gid}",
                "--clear-groups",
            ]
        data = self.folder / "data"
        subprocess.run(
            [*self._as_user, initdb, "-U", "bench", "-A", "trust", "-D", str(data), "-E", "UTF8"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )
        shutil.copy(HERE / "postgres" / "postgresql.conf", self.folder / "queue.conf")
        (self.folder / "queue.conf").chmod(0o644)
        with (data / "postgresql.conf").open("a") as file:
            file.write(f"include '{self.folder / 'queue.conf'}'\n")
            file.write(f"unix_socket_directories = '{self.folder}'\n")
        server = find("postgres", install=False)
        self._start([*self._as_user, server, "-D", str(data)], self._serves, signal.SIGINT)
        self.sql((HERE / "postgres" / "schema.sql").read_text())

    def sql(self, text: str) -> str:
        """Runs SQL and returns what it printed."""
        done = subprocess.run(
            [
                find("psql", install=False),
                "-h",
                str(self.folder),
                "-U",
                "bench",
                "-d",
                "postgres",
                "-qAtX",
                "-v",
                "ON_ERROR_STOP=1",
            ],
            input=text,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def _serves(self) -> bool:
        try:
            self.sql("SELECT 1")
        except subprocess.CalledProcessError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
