"""The command line as a whole: help, settings as flags, missing extras, defects."""

import json
import sys
import tomllib

import pytest
import typer
from typer.testing import CliRunner

from scheduler_service import cli, config
from scheduler_service.cli import late
from scheduler_service.cli.serve import app as serve_app

runner = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})


def test_help_names_every_command():
    """The first page names every command, and the exit codes."""
    text = runner.invoke(cli.app, ["--help"]).output
    for name in ("serve", "demo", "top", "tail", "explain", "pools", "weight", "token", "audit"):
        assert f" {name} " in text
    assert "Exit codes" in text


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_every_command_has_help(option):
    """Every command and subcommand explains itself and exits with 0."""
    groups = {info.name: info.typer_instance for info in cli.app.registered_groups}
    own = [[info.name] for info in cli.app.registered_commands]
    inner = [
        [name, info.name] for name, group in groups.items() for info in group.registered_commands
    ]
    assert len(own + inner) > 30
    late_inner = [["audit", "verify"], ["audit", "export"]]
    for words in own + inner + late_inner:
        done = runner.invoke(cli.app, [*words, option])
        assert done.exit_code == 0, (words, done.output)
        assert "Usage" in done.output or words == ["bench"]  # a process of its own writes it
        assert "completion" not in done.output, words


def test_every_setting_is_a_flag():
    """`serve` has a flag for every setting but the pools."""
    text = runner.invoke(serve_app, ["--help"]).output
    for name in config.Settings.model_fields:
        if name != "pools":
            assert f"--{name.replace('_', '-')} " in text, name


def test_flags_win_over_file_and_environment(tmp_path, monkeypatch):
    """A flag wins over the environment, that over the file; the printed settings load again."""
    monkeypatch.setenv("FAIRSCHED_GRACE_SECONDS", "7")
    monkeypatch.setenv("FAIRSCHED_STALL_SECONDS", "8")
    file = tmp_path / "f.toml"
    file.write_text('grace_seconds = 1\nlog_level = "error"\n[pools.chat]\nquota_k = 9\n')
    words = ["--config", str(file), "--grace-seconds", "9", "--no-reflection", "--print-config"]
    done = runner.invoke(serve_app, words)
    found = tomllib.loads(done.output)

    assert done.exit_code == 0
    assert (found["grace_seconds"], found["stall_seconds"]) == (9, 8)
    assert (found["log_level"], found["reflection"]) == ("error", False)
    assert found["pools"]["chat"]["quota_k"] == 9


def test_bad_settings_are_named_all_at_once():
    """A refused configuration names every bad setting and exits with 1."""
    words = ["--listen", "nonsense", "--stall-seconds", "0"]
    done = runner.invoke(serve_app, words)

    assert done.exit_code == 1
    assert "listen" in done.output
    assert "stall_seconds" in done.output


def test_public_plaintext_is_refused():
    """A public address without TLS must be stated on purpose."""
    done = runner.invoke(serve_app, ["--listen", "0.0.0.0:50051"])

    assert done.exit_code == 1
    assert "allow_plaintext" in done.output


def test_missing_extra_says_what_to_install(monkeypatch):
    """A command whose packages are missing names the extra, and exits with 2."""
    monkeypatch.setitem(sys.modules, "scheduler_service.sim.commands", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    app = typer.Typer()

    @app.callback()
    def root() -> None:
        pass

    app.command("x", context_settings=late.SETTINGS)(late.forward("x", "matplotlib_missing", "sim"))
    done = runner.invoke(app, ["x"])

    assert done.exit_code == 2
    assert "fairsched[sim]" in done.output


def test_token_entry_is_accepted():
    """A new token's entry is what the service reads; the token is not in it."""
    words = ["token", "new", "gw", "--role", "gateway", "--pool", "chat", "--user-prefix", "acme/"]
    done = runner.invoke(cli.app, words)
    (entry,) = tomllib.loads(done.stdout)["token"]
    token = done.stderr.split()[-1]

    assert done.exit_code == 0
    assert (entry["name"], entry["roles"], entry["pools"]) == ("gw", ["gateway"], ["chat"])
    assert len(entry["sha256"]) == 64
    assert token not in done.stdout


def test_token_of_nobody_is_refused():
    """A token that the service would not read is not made."""
    done = runner.invoke(cli.app, ["token", "new", "", "--role", "gateway"])

    assert done.exit_code == 2


def test_defect_is_one_line(monkeypatch, capsys):
    """A defect of the program itself shows no traceback and exits with 70."""

    def broken() -> None:
        raise LookupError("surprise")

    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.delenv("FAIRSCHED_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 70
    assert "LookupError: surprise" in capsys.readouterr().err


@pytest.mark.parametrize("empty", [False, True], ids=["no file", "empty file"])
@pytest.mark.parametrize(
    "words",
    [
        ["audit", "verify", "DIR"],
        ["audit", "export", "DIR", "x.jsonl"],
        ["whatif", "DIR", "--policy", "sfq"],
    ],
    ids=["verify", "export", "whatif"],
)
def test_no_log_there(tmp_path, words, empty):
    """A directory without a decision log is called that, with its name."""
    if empty:
        (tmp_path / "log.sqlite3").touch()
    done = runner.invoke(cli.app, [str(tmp_path) if word == "DIR" else word for word in words])

    assert done.exit_code == 1
    assert f"no decision log in {tmp_path}" in done.stderr
    assert "SQLITE" not in done.stderr


def test_json_is_one_object_a_line():
    """What scripts read is JSON on standard output and nothing else."""
    done = runner.invoke(cli.app, ["stats", "--json", "--target", "127.0.0.1:9", "--timeout", "1"])

    assert done.exit_code == 3
    assert done.stdout == ""
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stderr)
