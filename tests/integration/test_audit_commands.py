"""`fairsched audit`: verification and export of a real data directory, beside the service."""

import asyncio
import json
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scheduler_service.cli.audit import app
from tests.support.live import running

ROOT = Path(__file__).parents[2]


async def _audit(*arguments: object) -> tuple[int, str, str]:
    """Runs the command in this process; returns exit code, output and errors."""
    result = await asyncio.to_thread(CliRunner().invoke, app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


async def _audit_process(*arguments: object) -> tuple[int, str, str]:
    """Runs the command as a user does; returns exit code, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scheduler_service", "audit", *map(str, arguments),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def _work(live, count=40):
    for number in range(count):
        await live.enqueue(user_id=f"u{number % 3}", cost=1 + number)
        if number % 2:
            dispatch = (await live.next()).dispatches[0]
            if number % 3:
                await live.complete(dispatch.lease_id)


def _tamper(data_dir: Path, statement: str) -> None:
    connection = sqlite3.connect(data_dir / "log.sqlite3")
    with connection:
        connection.execute(statement)
    connection.close()


async def test_a_running_service_is_verified(tmp_path):
    """A log is verified and exported while its service goes on, heads of its log lines included."""
    lines = tmp_path / "lines.jsonl"
    async with running(tmp_path / "data") as live:
        await _work(live)
        head = live.engine.log.durable
        lines.write_text(
            "\n".join(
                json.dumps({"event": event, **values}, default=str) for event, values in live.events
            )
            + f'\nnot json\n{{"sequence": {head.sequence}, "chain_hash": '
            f'"{head.chain_hash.hex()}"}}\n'
        )
        code, out, err = await _audit("verify", tmp_path / "data", "--heads", lines, "--json")
        exported = await _audit("export", tmp_path / "data", tmp_path / "log.jsonl")
        await live.enqueue("still-serving")
    verdict = json.loads(out)

    assert code == 0, out + err
    assert verdict["good"]
    assert verdict["redecided"] == verdict["ends_at"] >= head.sequence
    assert verdict["heads"] >= 2
    assert exported[0] == 0
    exported_lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(exported_lines) >= head.sequence


_EIGHTH = "WHERE rowid = (SELECT rowid FROM log LIMIT 1 OFFSET 7)"
_FLIP = "CAST(substr(records, 1, length(records) - 1) || x'7f' AS BLOB)"
_LAST = "WHERE last_sequence = (SELECT max(last_sequence) FROM log)"


@pytest.mark.parametrize(
    ("tampering", "found"),
    [
        (("UPDATE log SET records =", _FLIP, _EIGHTH), "the hash chain is broken"),
        (("UPDATE log SET records = 'text'", _EIGHTH), "values of other types"),
        (("DELETE FROM log", _EIGHTH), "the next group begins at"),
        (("DELETE FROM log", _LAST), "its end was cut off"),
    ],
    ids=["flipped", "replaced", "removed", "cut"],
)
async def test_a_tampered_log_is_found(tmp_path, tampering, found):
    """A changed, a removed and a cut-off record are found in a copy of the directory."""
    async with running(tmp_path / "data") as live:
        await _work(live)
    closed = live.reported("log.closed")[0]
    copy = shutil.copytree(tmp_path / "data", tmp_path / "copy")
    for snapshot in copy.glob("snapshot-*"):
        snapshot.unlink()
    _tamper(copy, " ".join(tampering))
    head = f"{closed['sequence']}:{closed['chain_hash']}"

    good = await _audit("verify", tmp_path / "data", "--head", head)
    bad = await _audit("verify", copy, "--head", head)

    assert good[0] == 0, good
    assert "good" in good[1]
    assert bad[0] == 1, bad
    assert found in " ".join(bad[1].split())
    assert "NOT GOOD" in bad[1]


async def test_wrong_use(tmp_path):
    """A head that is none and a file of no known kind are refused before anything is read."""
    async with running(tmp_path / "data") as live:
        await live.enqueue("r")
    head = await _audit_process("verify", tmp_path / "data", "--head", "12:abc")
    kind = await _audit("export", tmp_path / "data", tmp_path / "log.csv")
    nowhere = await _audit("verify", tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    no_log = await _audit("verify", empty)

    assert [x[0] for x in (head, kind, nowhere)] == [2, 2, 2]
    assert no_log[0] == 1
    assert "Traceback" not in head[2] + kind[2] + nowhere[2] + no_log[2]
