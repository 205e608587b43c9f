"""Compiles with mypyc what runs for each request: the same source, called natively.

Without it everything works, from the plain source; with it a decision takes less time and memory.

    HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip wheel .    a wheel with compiled modules
    python .ci/compile.py                           beside the sources (`make compile`)

Both need a C compiler and Python's headers.

Compiled is the core, but for what only explains and for what defines records for msgspec: the
compiler would lose what their metaclass is told, `gc=False` above all.  Of the layers around it
those modules are whose work grows with the requests that are accepted, given out and finished, not
with calls, streams or commits.
"""

import shutil
import sys
import tempfile
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
        "engine",
        "estimate",
        "histogram",
        "learning",
        "misfits",
        "outlook",
        "payload_keys",
        "request_watch",
        "spans",
        "tally",
        "workers",
    ),
    "estimator": ("classify", "cost", "learning"),
    "rpc": ("convert", "delivery", "finishing", "intake", "validate"),
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


def compile_modules(root: Path, out: Path) -> list[Path]:
    """Compiles the modules below `root`; returns the libraries, at their places below `out`."""
    from mypyc.build import mypycify  # noqa: PLC0415 - installed after the builder asked this file for it
    from setuptools import Distribution  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as scratch:
        options = ["--config-file", str(root / ".ci" / "compile.ini"), "--cache-dir", scratch]
        sources = [str(path.relative_to(root)) for path in modules(root)]
        extensions = mypycify(
            [*options, *sources], opt_level="3", group_name=GROUP, target_dir=f"{scratch}/c"
        )
        command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(out), f"{scratch}/o"
        command.ensure_finalized()
        command.run()
        return [Path(path) for path in command.get_outputs()]


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
