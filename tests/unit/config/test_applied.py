"""What a changed configuration changes, and what it leaves alone."""

import pytest

from scheduler_service.app.policies import policy_digest
from scheduler_service.config import AppliedFiles, ConfigRefused, digest_of, plan
from scheduler_service.config.pools import policy_of
from scheduler_service.core import commands as c
from scheduler_service.core import policy as core_policy
from scheduler_service.core.policy import PRESETS, UserSettings
from scheduler_service.core.scheduler import apply
from scheduler_service.core.state import State


def _state(**pools):
    """Returns a state with these pools."""
    state = State()
    for name, entry in pools.items():
        policy = policy_of(name, entry)
        create = c.ConfigurePool(
            now_ns=0, pool=name, policy=policy, policy_digest=policy_digest(policy), create=True
        )
        apply(state, create, [])
    return state


def _user(state, pool, user_id, weight_milli, max_in_flight):
    change = c.ConfigureUser(
        now_ns=0,
        pool=pool,
        user_id=user_id,
        weight_milli=weight_milli,
        max_in_flight=max_in_flight,
    )
    apply(state, change, [])


def test_a_new_pool_is_created():
    """What is in the file and not there is made."""
    found = plan(_state(), {}, {"a": {"quota_k": 3}})

    ((name, policy, new),) = found.policies
    assert (name, policy.quota_k, new) == ("a", 3, True)


def test_what_did_not_change_does_nothing():
    """The same file again changes nothing, also when something was changed live."""
    state = _state(a={"quota_k": 9})
    entry = {"a": {"quota_k": 3, "users": {"u": {"weight_milli": 5}}}}

    found = plan(state, entry, entry)
    assert (found.policies, found.users) == ([], [])


def test_only_changed_keys_act():
    """A key that changed acts; live changes of the others stand."""
    state = _state(a={"quota_k": 3, "max_passes": 9})
    found = plan(
        state, {"a": {"quota_k": 3, "max_passes": 5}}, {"a": {"quota_k": 4, "max_passes": 5}}
    )

    ((_, policy, new),) = found.policies
    assert (policy.quota_k, policy.max_passes, new) == (4, 9, False)


def test_a_key_that_was_taken_out_goes_back_to_the_preset():
    """Taking a key out is a change like any other."""
    state = _state(a={"preset": "sfq", "quota_k": 9, "lease_duration_seconds": 7})
    found = plan(
        state,
        {"a": {"preset": "sfq", "quota_k": 9, "lease_duration_seconds": 7}},
        {"a": {"preset": "sfq"}},
    )

    ((_, policy, _),) = found.policies
    assert policy == PRESETS["sfq"]


def test_another_preset_states_everything():
    """A changed preset sets every field that is not stated beside it."""
    state = _state(a={"preset": "sfq", "max_passes": 9})
    found = plan(state, {"a": {"preset": "sfq"}}, {"a": {"preset": "fair_qba", "quota_k": 2}})

    ((_, policy, _),) = found.policies
    assert (policy.preset, policy.quota_k, policy.max_passes) == ("fair_qba", 2, 8)


def test_a_pool_that_was_taken_out_stays():
    """A file never deletes a pool."""
    found = plan(_state(a={}), {"a": {"quota_k": 3}}, {})

    assert (found.policies, found.users) == ([], [])


def test_users_are_added_changed_and_taken_out():
    """What is not stated about a user stays; a user that was taken out loses its own."""
    state = _state(a={})
    _user(state, "a", "changed", 2000, 7)
    _user(state, "a", "gone", 3000, -1)
    _user(state, "a", "live", 4000, -1)
    before = {"changed": {"weight_milli": 2000}, "gone": {"weight_milli": 3000}}
    after = {"changed": {"weight_milli": 500}, "new": {"max_in_flight": 0}}
    found = plan(state, {"a": {"users": before}}, {"a": {"users": after}})

    assert found.users == [
        ("a", "changed", UserSettings(weight_milli=500, max_in_flight=7)),
        ("a", "gone", UserSettings()),
        ("a", "new", UserSettings(max_in_flight=0)),
    ]


def test_a_mode_changes_only_in_an_empty_pool():
    """What the core would refuse is refused before anything is applied."""
    state = _state(a={}, b={})
    apply(state, c.Enqueue(now_ns=0, pool="a", request_id="r", user_id="u", cost=1), [])
    after = {"a": {"mode": "gate"}, "b": {"mode": "gate"}}
    with pytest.raises(ConfigRefused) as error:
        plan(state, {}, after)

    assert [key for key, _ in error.value.problems] == ["pools.a.mode"]


def test_there_are_so_many_pools_at_most(monkeypatch):
    """Those that exist count, too."""
    monkeypatch.setattr("scheduler_service.config.applied.POOLS_MAX", 2)
    assert core_policy.POOLS_MAX > 2
    with pytest.raises(ConfigRefused, match="pools"):
        plan(_state(a={}, b={}), {}, {"c": {}})


def test_what_was_applied_is_found_by_its_digest(tmp_path):
    """A torn or changed file is as good as none; files of other digests go."""
    files = AppliedFiles(tmp_path)
    first, second = {"a": {"quota_k": 1}}, {"a": {"quota_k": 2}}
    one, two = files.write(first), files.write(second)

    assert (one, two) == (digest_of(first), digest_of(second))
    assert files.read(one) == first
    files.keep_only(two)
    assert (files.read(one), files.read(two)) == ({}, second)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text()[:-3])
    assert files.read(two) == {}
