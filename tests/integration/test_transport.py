"""TLS and mutual TLS with certificates that change, and the HTTP port beside it."""

import asyncio
import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import grpc
import pytest
import trustme

from fairsched.v1 import audit_service_pb2, decision_pb2
from fairsched.v1 import scheduler_service_pb2 as pb
from fairsched.v1.scheduler_service_pb2_grpc import SchedulerServiceStub
from scheduler_service.config import ConfigRefused, load
from scheduler_service.rpc.tls import TlsError
from scheduler_service.server import violations
from tests.support.live import POOL, running


class Keys:
    """Certificates in files, as an operator would keep them."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        self.client_roots = folder / "clients.pem"
        self.clients.cert_pem.write_to_path(self.client_roots)
        self.issue(self.authority)

    def issue(self, authority: trustme.CA) -> None:
        """Replaces the server's certificate by one of this authority."""
        issued = authority.issue_cert("localhost", "127.0.0.1")
        stamp = self.certificate.stat().st_mtime_ns + 10**9 if self.certificate.exists() else None
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        if stamp is not None:
            os.utime(self.certificate, ns=(stamp, stamp))

    def flags(self) -> dict[str, object]:
        return {"tls_certificate": self.certificate, "tls_key": self.key}


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


async def _call(port, authority, client=None):
    """Enqueues over TLS; returns the code."""
    chain = {}
    if client is not None:
        chain = {
            "private_key": client.private_key_pem.bytes(),
            "certificate_chain": b"".join(p.bytes() for p in client.cert_chain_pems),
        }
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes(), **chain)
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        request = pb.EnqueueRequest(pool=POOL, user_id="u", request_id="r", cost=1)
        try:
            await SchedulerServiceStub(channel).Enqueue(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


async def test_tls_follows_its_certificate(tmp_path, keys):
    """A replaced certificate is in force for the next connection; a bad one changes nothing."""
    other = trustme.CA()
    async with running(tmp_path / "data", **keys.flags()) as live:
        before = [await _call(live.port, ca) for ca in (keys.authority, other)]
        keys.issue(other)
        after = [await _call(live.port, ca) for ca in (keys.authority, other)]
        keys.certificate.write_text("junk")
        still = await _call(live.port, other)

    ok, refused = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
    assert before == [ok, refused]
    assert after == [refused, ok]
    assert still is ok
    assert len(live.reported("certificate.read")) == 1
    assert len(live.reported("certificate.refused")) == 1


async def test_mutual_tls_names_the_caller(tmp_path, keys):
    """With mutual TLS a client certificate lets its holder in, under its name, in its role."""
    credentials = tmp_path / "credentials.toml"
    credentials.write_text(
        '[[certificate]]\ncommon_name = "gateway-7.example"\nroles = ["gateway"]\n'
        "states_cost = true\n"
        '[[certificate]]\ncommon_name = "worker-7.example"\nroles = ["worker"]\n'
    )
    gateway = keys.clients.issue_cert("gateway-7.example")
    worker = keys.clients.issue_cert("worker-7.example")
    unknown = keys.clients.issue_cert("nobody.example")
    stranger = trustme.CA().issue_cert("gateway-7.example")
    flags = keys.flags() | {
        "tls_client_authorities": keys.client_roots,
        "credentials_file": credentials,
    }
    async with running(tmp_path / "data", **flags) as live:
        codes = [
            await _call(live.port, keys.authority, client)
            for client in (gateway, worker, unknown, stranger, None)
        ]
        records = live.service.runtime.seen.store.read(0, max_bytes=1 << 20)

    assert codes == [
        grpc.StatusCode.OK,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAVAILABLE,
    ]
    assert b"gateway-7.example" in b"".join(group.frame for group in records)


async def test_a_key_of_another_certificate_is_refused_at_the_start(tmp_path, keys):
    """A service does not start with a certificate and a key that do not belong together."""
    keys.key.write_bytes(keys.authority.issue_cert("x").private_key_pem.bytes())

    with pytest.raises(TlsError, match="do not belong together"):
        async with running(tmp_path / "data", **keys.flags()):
            pass


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:1", "example.com:1"])
def test_a_public_address_needs_tls_or_a_word(address):
    """Plaintext is for this machine only, unless it is allowed on purpose."""
    with pytest.raises(ConfigRefused, match="plaintext"):
        load(None, {"listen": address}, {})
    with pytest.raises(ConfigRefused, match="http_listen"):
        load(None, {"http_listen": address}, {})
    assert load(None, {"listen": address, "allow_plaintext": True}, {}).listen == address


# -- the HTTP port ------------------------------------------------------------------------------


def _get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def test_a_broken_law_is_still_counted_after_the_restart(tmp_path):
    """The process that finds one is gone before a scrape; the alert must fire all the same."""
    async with running(tmp_path / "one") as live:
        await live.enqueue("a")
        await live.enqueue("b")
        live.engine.state.pools["default"].virtual_time = 1 << 50
        with pytest.raises(grpc.aio.AioRpcError):
            await live.next()
        assert isinstance(await live.service.failed(), AssertionError)
    # A service that has failed keeps its lock until the process ends, so another folder goes on.
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / violations.NAME, tmp_path / "two")
    async with running(tmp_path / "two", http_listen="127.0.0.1:0") as live:
        port = int(live.reported("service.listening")[0]["http_port"])
        _, metrics = await asyncio.to_thread(_get, port, "/metrics")

    assert "fairsched_invariant_violations_total 1.0" in metrics


async def test_probes_and_metrics_of_a_service(tmp_path):
    """The probes and the metrics of a running service tell what is so, problems included."""
    async with running(tmp_path / "data", http_listen="127.0.0.1:0", metrics_users=1) as live:
        port = int(live.reported("service.listening")[0]["http_port"])
        await live.enqueue("r", "u")
        await live.next()
        ready = await asyncio.to_thread(_get, port, "/readyz")
        live.service.runtime.readiness.problem("log", "The decision log is not being written.")
        unready = await asyncio.to_thread(_get, port, "/readyz")
        alive = await asyncio.to_thread(_get, port, "/livez")
        _, metrics = await asyncio.to_thread(_get, port, "/metrics")
        head = live.engine.log.durable

    said = json.loads(ready[1])
    assert ready[0] == 200
    assert (said["phase"], said["durability"]) == ("serving", "sync")
    assert (said["sequence"], said["head_hash"]) == (head.sequence, head.chain_hash.hex())
    assert unready[0] == 503
    assert json.loads(unready[1])["problems"] == {"log": "The decision log is not being written."}
    assert alive == (200, "ok\n")
    assert 'fairsched_user_cost_units_total{pool="default",user="u"} 1.0' in metrics
    assert 'fairsched_rpcs_total{code="OK",rpc="Enqueue"} 1.0' in metrics
    assert "process_resident_memory_bytes" in metrics


async def test_a_taken_http_port_is_refused(tmp_path):
    """A second service on the same HTTP port does not start."""
    async with running(tmp_path / "one", http_listen="127.0.0.1:0") as live:
        port = live.reported("service.listening")[0]["http_port"]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
            async with running(tmp_path / "two", http_listen=f"127.0.0.1:{port}"):
                pass


async def test_the_published_head_is_in_the_log(tmp_path):
    """Every published head is the hash of that decision, so a rewritten log can be told."""
    async with running(tmp_path / "data") as live:
        await live.enqueue("r")
        telemetry = live.service._telemetry
        telemetry._head_ns -= 10**18
        telemetry.publish_head()
        telemetry.publish_head()
        (published,) = live.reported("log.head_published")
        page = await live.audit.ListDecisions(audit_service_pb2.ListDecisionsRequest())
    closed = live.reported("log.closed")[0]

    hashes = {x.sequence: x.hash.hex() for x in page.decisions}
    assert published["chain_hash"] == hashes[published["sequence"]]
    assert closed["chain_hash"] == hashes[closed["sequence"]]
    assert decision_pb2.DECISION_KIND_ACCEPTED in {x.kind for x in page.decisions}
