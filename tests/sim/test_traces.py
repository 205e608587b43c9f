"""Readers of request streams."""

from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf.json_format import MessageToJson

from fairsched.v1 import decision_pb2 as audit
from fairsched.v1 import policy_pb2 as policy
from scheduler_service.core.policy import PRESETS
from scheduler_service.sim.core_method import CoreMethod
from scheduler_service.sim.data import AZURE_SAMPLE, MULTI_TENANT_SAMPLE
from scheduler_service.sim.kernel import simulate
from scheduler_service.sim.logtrace import read_any
from scheduler_service.sim.model import PAPER_ENGINE
from scheduler_service.sim.single import run_one
from scheduler_service.sim.specs import MethodSpec, RunSpec, StreamSpec, stream_of
from scheduler_service.sim.traces import Row, TraceError, from_rows, windows


def write(path, text):
    path.write_text(text)
    return path


def test_azure_sample(tmp_path):
    """Azure's columns are read, with fractions of a second beyond microseconds."""
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951695,396,109\n"
    )
    rows = read_any(write(tmp_path / "t.csv", text))
    stream = from_rows("t", rows)

    assert [(row.prompt, row.response, row.user) for row in rows] == [
        (374, 44, "all"),
        (396, 109, "all"),
    ]
    assert stream.arrival_ns[1] == pytest.approx(4_314_579_500, abs=200)


def test_shipped_samples_are_readable():
    """The samples that come with the package have the sizes that SOURCE.md states."""
    azure = stream_of(StreamSpec("trace", count=0, by="work", paths=AZURE_SAMPLE, rate=0.0))
    tenants = stream_of(StreamSpec("trace", count=0, by="work", paths=MULTI_TENANT_SAMPLE, rate=0))

    azure.check()
    tenants.check()
    assert (len(azure), azure.users) == (3000, ["azure_2023_code_sample", "azure_2023_conv_sample"])
    assert tenants.arrival_ns[-1] < 120e9
    assert len(tenants.users) > 15


def test_generic_tables(tmp_path):
    """Common column names are understood, in CSV and in Parquet alike."""
    text = "time,tenant,input_tokens,output_tokens\n1.5,a,10,20\n0.5,b,30,0\n"
    csv_rows = read_any(write(tmp_path / "t.csv", text))
    table = {
        "time": [1.5, 0.5],
        "tenant": ["a", "b"],
        "input_tokens": [10, 30],
        "output_tokens": [20, 0],
    }
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    stream = from_rows("t", csv_rows)

    assert read_any(tmp_path / "t.parquet") == csv_rows
    assert (stream.users, stream.user, stream.response) == (["a", "b"], [1, 0], [1, 20])


def test_scaling_and_rate():
    """Lengths are scaled and floored to at least 1; the timeline is stretched to the rate."""
    rows = [Row(float(i), "u", 100 * i, 1) for i in range(11)]
    stream = from_rows("t", rows, scale=0.44, rate=2.0)

    assert stream.prompt[:3] == [1, 44, 88]
    assert stream.arrival_ns[-1] == 5_000_000_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "no column for arrival_s, prompt, response"),
        ("time,prompt,response\n1,x,2\n", ":2: "),
        ("time,prompt,response\n1,5,2\n2,-1,2\n", ":3: token counts must not be negative"),
        ("time,prompt,response\n1,5\n", ":2: "),
        ("time,prompt,response\nyesterday,5,1\n", ":2: "),
    ],
)
def test_broken_tables_name_the_line(tmp_path, text, problem):
    """A value that cannot be read is an error with file and line, never a dropped row."""
    with pytest.raises(TraceError, match=problem):
        read_any(write(tmp_path / "t.csv", text))


def test_unknown_kinds_are_refused(tmp_path):
    """A file of another kind is refused by name."""
    with pytest.raises(TraceError, match=r"not a \.csv or \.parquet"):
        read_any(write(tmp_path / "t.txt", ""))


def test_windows_are_equal_and_in_order():
    """Windows have the same size and do not overlap."""
    rows = [Row(float(i % 7), "u", i + 1, 1) for i in range(25)]
    found = windows(rows, 4)

    assert [len(window) for window in found] == [6] * 4
    assert all(a[-1].arrival_s <= b[0].arrival_s for a, b in pairwise(found))
    assert windows(rows, 100) == []


def test_a_decision_log_is_a_trace(tmp_path):
    """Replaying a run's own decision log as a stream gives the same dispatches."""
    log = tmp_path / "log.jsonl"
    stream = StreamSpec("users", seed=1, rate=25.0, count=300)
    run_one(RunSpec(stream, MethodSpec("sfq"), "paper"), decisions=log)
    original, again = stream_of(stream), from_rows("log", read_any(log))
    runs = [
        simulate(workload, CoreMethod("sfq", PRESETS["sfq"]), PAPER_ENGINE)
        for workload in (original, again)
    ]

    assert again.prompt == original.prompt
    assert again.cost == original.cost
    assert again.predicted_long == original.predicted_long
    assert runs[0].order == runs[1].order


def test_named_records_are_understood(tmp_path):
    """Objects with a kind and named fields are read too; of several pools one must be named."""
    head = '{"kind": "ACCEPTED", "now_ns": %d, "pool": "%s", "request_id": "%s", '
    rest = (
        '"user_id": "u", "cost": 30, "predicted_class": "LONG", "weight_milli": 2000, '
        '"prompt_tokens": 10, "expected_output_tokens": 20}\n'
    )
    done = '{"kind": "completed", "pool": "a", "request_id": "1", '
    text = head % (5, "a", "1") + rest + head % (9, "b", "2") + rest
    text += done + '"prompt_tokens": 11, "output_tokens": 25}\n\n{"kind": "PAUSED"}\n'
    path = write(tmp_path / "log.jsonl", text)

    with pytest.raises(TraceError, match="pools a, b"):
        read_any(path)
    row = read_any(path, "a")[0]
    assert (row.prompt, row.response, row.predicted_response, row.cost) == (11, 25, 20, 30)
    assert (row.predicted_long, row.weight_milli) == (True, 2000)


def test_watched_decisions_are_understood(tmp_path):
    """Decisions of the audit stream, printed as JSON by the API's own rules, are a trace."""
    accepted = audit.Decision(
        sequence=7,
        kind=audit.DECISION_KIND_ACCEPTED,
        pool="p",
        user_id="u",
        request_id="r",
        accepted=audit.Accepted(
            cost=50,
            predicted_class=policy.PREDICTED_CLASS_LONG,
            weight_milli=1000,
            prompt_tokens=20,
            expected_output_tokens=30,
        ),
    )
    accepted.time.FromNanoseconds(1_700_000_000_250_000_000)
    completed = audit.Decision(
        kind=audit.DECISION_KIND_COMPLETED,
        pool="p",
        request_id="r",
        completed=audit.Completed(prompt_tokens=20, output_tokens=44),
    )
    lines = [MessageToJson(message, indent=None) for message in (accepted, completed)]
    path = write(tmp_path / "tail.jsonl", "\n".join(lines))

    assert read_any(path) == [Row(1_700_000_000.25, "u", 20, 44, 30, 50, True, 1000)]


def test_a_torn_log_line_is_named(tmp_path):
    """A line that is no JSON is an error with its number."""
    with pytest.raises(TraceError, match=":1: "):
        read_any(write(tmp_path / "log.jsonl", "[9, 1\n"))
