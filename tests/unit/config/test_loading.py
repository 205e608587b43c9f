"""One schema for file, environment and flags."""

import pytest

from scheduler_service.config import ConfigRefused, Settings, load, pools_of, render, split_address
from scheduler_service.config.pools import POLICY_KEYS, policy_of
from scheduler_service.core.policy import ClassOrder, PoolMode, PoolPolicy


@pytest.fixture
def write(tmp_path):
    """Writes a configuration file and returns its path."""

    def write(text):
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return write


def _refused(*args):
    with pytest.raises(ConfigRefused) as error:
        load(*args)
    return dict(error.value.problems)


def test_flags_win_over_the_environment_over_the_file_over_defaults(write):
    """Each source states what the ones before it leave open."""
    file = write('data_dir = "f"\nlog_level = "error"\ngrace_seconds = 1\n')
    environment = {"FAIRSCHED_LOG_LEVEL": "debug", "FAIRSCHED_GRACE_SECONDS": "2"}
    settings = load(file, {"grace_seconds": 3.5, "listen": None}, environment)

    assert str(settings.data_dir) == "f"
    assert settings.log_level == "debug"
    assert settings.grace_seconds == 3.5
    assert settings.listen == "127.0.0.1:50051"


@pytest.mark.parametrize("name", [n for n in Settings.model_fields if n != "pools"])
def test_every_setting_can_be_stated_everywhere(name, write):
    """What is printed for a setting is understood from file and environment alike."""
    default = load(None, {}, {})
    (line,) = [
        x for x in render(default).splitlines() if x.removeprefix("# ").startswith(f"{name} =")
    ]
    if line.startswith("#"):
        assert getattr(default, name) is None
        return
    value = getattr(default, name)
    assert getattr(load(write(line), {}, {}), name) == value
    text = str(getattr(value, "value", value))
    assert getattr(load(None, {}, {f"FAIRSCHED_{name.upper()}": text}), name) == value


def test_what_is_printed_gives_the_same_settings(write):
    """`--print-config` is a file that can be used."""
    file = write(
        'listen = "127.0.0.1:1"\n[pools."a \\" b"]\npreset = "qba"\nmax_wait_seconds = 1.5\n'
        '[pools."a \\" b".users."ü/x"]\nweight_milli = 5\n'
    )
    settings = load(file, {}, {})

    assert load(write(render(settings)), {}, {}) == settings


def test_unknown_keys_are_refused(write):
    """A typo is an error, in the file, in a pool, in a user and in the environment."""
    text = "graze_seconds = 1\n[pools.a]\nquotak = 1\n[pools.a.users.u]\nweight = 1\n"
    assert set(_refused(write(text), {}, {})) == {
        "graze_seconds",
        "pools.a.quotak",
        "pools.a.users.u.weight",
    }
    assert set(_refused(None, {}, {"FAIRSCHED_GRAZE_SECONDS": "1"})) == {"FAIRSCHED_GRAZE_SECONDS"}
    assert set(_refused(None, {}, {"FAIRSCHED_POOLS": "{}"})) == {"FAIRSCHED_POOLS"}


@pytest.mark.parametrize(
    "name",
    [
        "FAIRSCHED_PORT",
        "FAIRSCHED_SERVICE_HOST",
        "FAIRSCHED_SERVICE_PORT_GRPC",
        "FAIRSCHED_PORT_50051_TCP_ADDR",
        "FAIRSCHED_TARGET",
        "FAIRSCHED_TOKEN_FILE",
        "FAIRSCHED_CONFIG",
        "OTHER",
    ],
)
def test_variables_of_others_are_left_alone(name):
    """What an orchestrator or a client sets is no setting and no error."""
    assert load(None, {}, {name: "tcp://10.0.0.1"}) == load(None, {}, {})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("payload_bytes", "-1"),
        ("message_bytes", "1"),
        ("grace_seconds", "nan"),
        ("grace_seconds", "inf"),
        ("grace_seconds", "-1"),
        ("stall_seconds", "0"),
        ("sync_interval_ms", "0"),
        ("snapshot_records", "1e400"),
        ("durability", "maybe"),
        ("log_level", "loud"),
        ("listen", "nowhere"),
        ("listen", "h:65536"),
        ("http_listen", "h:-1"),
        ("user_id_mode", "rot13"),
        ("metrics_users", "1001"),
    ],
)
def test_values_out_of_range_are_named(key, value):
    """Every setting has a range, and what is out of it is named."""
    assert list(_refused(None, {}, {f"FAIRSCHED_{key.upper()}": value})) == [key]


def test_all_problems_are_named_at_once(write):
    """Nobody fixes a file key by key."""
    text = (
        'payload_bytes = -1\nstreams = -1\n[pools.a]\nquota_k = 0\nmode = "gat"\n'
        'max_wait_seconds = inf\nlease_duration_seconds = 0.5\npreset = "best"\n'
    )
    problems = _refused(write(text), {}, {})

    assert {"payload_bytes", "streams", "pools"} <= set(problems)
    for key in ("quota_k", "mode", "max_wait_seconds", "lease_duration_seconds", "preset"):
        assert f"pools.a.{key}" in problems["pools"]


@pytest.mark.parametrize(
    ("flags", "good"),
    [
        ({"listen": "127.0.0.1:1"}, True),
        ({"listen": "[::1]:1"}, True),
        ({"listen": "localhost:1"}, True),
        ({"listen": "unix:/tmp/s"}, True),
        ({"listen": "0.0.0.0:1"}, False),
        ({"listen": "[::]:1"}, False),
        ({"listen": "scheduler:1"}, False),
        ({"admin_listen": "10.0.0.1:1"}, False),
        ({"http_listen": "0.0.0.0:1"}, False),
        ({"listen": "0.0.0.0:1", "allow_plaintext": True}, True),
        ({"listen": "0.0.0.0:1", "tls_certificate": "c", "tls_key": "k"}, True),
        (
            {
                "listen": "0.0.0.0:1",
                "http_listen": "0.0.0.0:2",
                "tls_certificate": "c",
                "tls_key": "k",
            },
            False,
        ),
    ],
    ids=str,
)
def test_other_machines_are_let_in_on_purpose_only(flags, good):
    """A public address needs TLS, or a flag that says plaintext is meant (R128)."""
    if good:
        load(None, flags, {})
    else:
        assert "plaintext" in str(_refused(None, flags, {}))


@pytest.mark.parametrize(
    "flags",
    [
        {"tls_certificate": "c"},
        {"tls_key": "k"},
        {"tls_client_authorities": "a"},
        {"user_id_mode": "hmac"},
        {"payload_bytes": 3 << 20},
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(flags):
    """Relations between settings are checked, too."""
    assert _refused(None, flags, {})


def test_a_file_that_cannot_be_read_is_refused(tmp_path, write):
    """No file, no TOML, no text: an error that names the file."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", write("a = = 1"), tmp_path / "bytes"):
        assert list(_refused(path, {}, {})) == [str(path)]


def test_without_pools_there_is_one_that_takes_stated_costs():
    """A first start without a file has something to work with."""
    pools = pools_of(load(None, {}, {}))

    assert pools == {"default": {"cost_source": "caller", "users": {}}}
    assert policy_of("default", pools["default"]).preset == "fair_qba"


def test_a_pool_differs_from_its_preset_in_what_is_stated():
    """Enums are lower case, durations are exact seconds."""
    entry = {"preset": "sfq", "mode": "gate", "class_order": "qba", "max_wait_seconds": 0.1}
    policy = policy_of("p", entry)

    assert (policy.preset, policy.slack_milli) == ("sfq", 0)
    assert policy.mode is PoolMode.GATE
    assert policy.class_order is ClassOrder.QBA
    assert policy.max_wait_ns == 100_000_000


def test_every_field_of_a_policy_can_be_configured():
    """The keys are the fields of the policy, all of them."""
    assert set(POLICY_KEYS.values()) == set(PoolPolicy.__struct_fields__)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("h:1", ("h", 1)),
        ("[::1]:0", ("::1", 0)),
        ("unix:/a:b", ("unix:/a:b", 0)),
    ],
)
def test_addresses_are_taken_apart(address, parts):
    """Host and port of every form."""
    assert split_address(address) == parts
