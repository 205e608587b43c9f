"""Compiles with mypyc what runs for each request: the same source, called natively.

Without it everything works, from the plain source; with it a decision takes less time and memory.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel .    a wheel with compiled modules
    python .ci/compile.py                           beside the sources (`make compile`)

Both need a C compiler and Python's headers.  With GCC 10 or newer it is compiled twice: what is
made first does some seconds of work (`train.py`) and counts its branches, and the code that is kept
is laid out by that and optimised across modules; a decision takes 7 to 9 % less time for it.  Where
what is compiled cannot run, for instance for another machine, FAIRSCHED_COMPILE_ONCE=1 leaves that
out.

Compiled is the core, but for what only explains and for what defines records for msgspec: the
compiler would lose what their metaclass is told, `gc=False` above all.  Of the layers around it
those modules are that do something for each request that is accepted, given out and finished, also
where each takes a call and a commit of its own.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLAIN = {"__init__", "commands", "decisions", "errors", "gone", "policy", "snapshot"}
NOT_HOT = {"explain", "explain_others", "outlook", "phrases"}
AROUND = {
    "app": (
        "blocked",
        "chain",
        "clock",
        "commit",
        "engine",
        "estimate",
        "histogram",
        "learning",
        "misfits",
        "outlook",
        "payload_keys",
        "presence",
        "request_watch",
        "spans",
        "tally",
        "workers",
    ),
    "estimator": ("classify", "cost", "learning"),
    "rpc": ("convert", "delivery", "finishing", "intake", "pulling", "validate"),
}
"""By package: what is compiled around the core."""

GROUP = "fairsched"
"""mypyc puts the compiled code of all modules into one library of this name."""


def modules(root: Path) -> list[Path]:
    """Returns the sources to compile."""
    package = root / "scheduler_service"
    core = (p for p in (package / "core").glob("*.py") if p.stem not in PLAIN | NOT_HOT)
    around = (package / folder / f"{name}.py" for folder in AROUND for name in AROUND[folder])
    return sorted((*core, *around))


DIRECT = ("-fno-plt", "-fno-semantic-interposition", "-Wno-error")
COUNTING = (*DIRECT, "-fprofile-generate")
BY_COUNTS = (
    *DIRECT,
    "-flto=auto",
    "-fprofile-use",
    "-fprofile-partial-training",
    "-Wno-missing-profile",
)
"""Flags of GCC for the first and for the second time."""


def compile_modules(root: Path, out: Path) -> list[Path]:
    """Compiles the modules below `root`; returns the libraries, at their places below `out`."""
    from mypyc.build import mypycify  # noqa: PLC0415 - hatchling loads this file before it installs that

    with tempfile.TemporaryDirectory() as scratch:
        options = ["--config-file", str(root / ".ci" / "compile.ini"), "--cache-dir", scratch]
        sources = [str(path.relative_to(root)) for path in modules(root)]
        extensions = mypycify(
            [*options, *sources],
            opt_level="3",
            debug_level="0",
            group_name=GROUP,
            target_dir=f"{scratch}/c",
        )
        if "FAIRSCHED_COMPILE_ONCE" in os.environ or not accepted(BY_COUNTS, scratch):
            return build(extensions, out, scratch, ())
        tree = Path(scratch, "tree")
        build(extensions, tree, scratch, COUNTING)
        train(root, tree)
        if not any(Path(scratch, "o").rglob("*.gcda")):
            raise RuntimeError("nothing was counted")
        return build(extensions, out, scratch, BY_COUNTS)


def accepted(flags: Sequence[str], scratch: str) -> bool:
    """Whether the C compiler takes all these flags."""
    source = Path(scratch, "empty.c")
    source.write_text("")
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    command = [*compiler.split(), "-Werror", *flags, "-c", str(source), "-o", f"{source}.o"]
    try:
        tried = subprocess.run(  # noqa: S603 - the compiler the build runs anyway, own flags, no shell
            command, capture_output=True, check=False
        )
    except OSError:
        return False  # the build will say what is wrong with it
    return tried.returncode == 0


def build(extensions: list[Any], out: Path, scratch: str, flags: Sequence[str]) -> list[Path]:
    """Compiles C with these flags; the objects, and the counts, stay at the same places."""
    from setuptools import Distribution  # noqa: PLC0415 - installed after this file is loaded, too

    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.force = str(out), f"{scratch}/o", True
    own = [list(extension.extra_compile_args) for extension in extensions]
    for extension, args in zip(extensions, own, strict=True):
        extension.extra_compile_args = [*args, *flags]
        extension.extra_link_args = ["-O3", *flags]
    command.ensure_finalized()
    command.run()
    for extension, args in zip(extensions, own, strict=True):
        extension.extra_compile_args = args
    return [Path(path) for path in command.get_outputs()]


def train(root: Path, tree: Path) -> None:
    """Has the modules compiled into `tree` do their work."""
    for package in ("scheduler_service", "clients/python/fairsched"):
        shutil.copytree(
            root / package,
            tree / Path(package).name,
            ignore=shutil.ignore_patterns("*.so"),
            dirs_exist_ok=True,
        )
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(root / ".ci" / "train.py")]
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(command, check=True, cwd=tree, env=environment)  # noqa: S603 - train.py, no shell


class CompileHook(BuildHookInterface[Any]):
    """Puts the compiled modules into a wheel; pip's editable installs stay plain."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and tells the builder what to add."""
        if version == "editable":
            return
        out = Path(self.directory) / "compiled"
        shutil.rmtree(out, ignore_errors=True)
        for library in compile_modules(Path(self.root), out):
            build_data["force_include"][str(library)] = str(library.relative_to(out))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def main() -> None:
    """Compiles beside the sources, in place of what was compiled before."""
    root = Path(__file__).resolve().parent.parent
    remove(root)
    for library in compile_modules(root, root):
        sys.stdout.write(f"{library.relative_to(root)}\n")


def remove(root: Path) -> None:
    """Removes what `main` made."""
    for library in [*root.glob("fairsched*__mypyc.*.so"), *root.glob("scheduler_service/*/*.so")]:
        library.unlink()


if __name__ == "__main__":
    main()
