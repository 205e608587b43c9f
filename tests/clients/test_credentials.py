"""Tokens and TLS, as a client uses them, against a service that asks for them."""

import subprocess
import sys

import pytest

import fairsched
from fairsched import Fairsched, Tls, new_request
from fairsched.v1 import admin_service_pb2
from tests.clients.service_process import ServiceProcess


@pytest.fixture
def secured(tmp_path):
    """A service with TLS and two tokens, the tokens, and the certificate to trust."""
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "1", "-subj", "/CN=scheduler", "-addext",
        "subjectAltName=DNS:scheduler,IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    credentials, tokens = tmp_path / "credentials.toml", {}
    for name, role in (("gw", "gateway"), ("boss", "admin")):
        made = subprocess.run(
            [sys.executable, "-m", "scheduler_service", "token", "new", name, "--role", role],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        with credentials.open("a") as file:
            file.write(made.stdout)
        tokens[name] = made.stderr.split()[-1]
    flags = ("--tls-certificate", str(certificate), "--tls-key", str(key))
    process = ServiceProcess(tmp_path / "s", *flags, "--credentials-file", str(credentials))
    process.start()
    yield process, tokens, Tls(ca=certificate)
    process.ensure_gone()


def test_roles_over_tls(secured):
    """A token opens what its role allows, over TLS, and nothing else."""
    process, tokens, tls = secured
    request = new_request(pool="default", user_id="a", prompt_tokens=1, max_output_tokens=1)
    with Fairsched(process.target, token=lambda: tokens["gw"], tls=tls) as gateway:
        assert gateway.enqueue(request).sequence > 0
        with pytest.raises(fairsched.DeniedError) as denied:
            gateway.admin.ListPools(admin_service_pb2.ListPoolsRequest())
    with Fairsched(process.target, token=tokens["boss"], tls=tls) as boss:
        assert boss.admin.ListPools(admin_service_pb2.ListPoolsRequest()).pools
    with (
        Fairsched(process.target, token=tokens["gw"][:-1], tls=tls) as nobody,
        pytest.raises(fairsched.UnauthenticatedError) as unknown,
    ):
        nobody.enqueue(request)

    assert denied.value.reason == "ROLE_MISSING"
    assert unknown.value.reason == "TOKEN_UNKNOWN"
    assert process.stop() == 0
    assert tokens["gw"] not in process.log()


def test_plaintext_gets_nowhere(secured):
    """Without TLS a client of a TLS service gets an error, not a hang."""
    process, tokens, _ = secured
    with (
        Fairsched(process.target, token=tokens["gw"], timeout=3) as client,
        pytest.raises((fairsched.UnavailableError, fairsched.DeadlineError)),
    ):
        client.enqueue(new_request(pool="default", user_id="a", cost=1))


def test_half_a_key_pair_is_refused():
    """A certificate without its key is refused when it is used."""
    with pytest.raises(ValueError, match="key"):
        Tls(certificate="c.pem").credentials()
