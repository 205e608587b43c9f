"""Small request streams for tests."""

import random

from scheduler_service.sim.model import Workload


def stream(requests, users=None, weights=None):
    """Returns a stream of (arrival_ns, user, prompt, response) rows."""
    users = users or sorted({row[1] for row in requests})
    prompt, response = [row[2] for row in requests], [row[3] for row in requests]
    return Workload(
        name="test",
        users=[f"user-{user}" for user in users],
        weights_milli=weights or [1000] * len(users),
        arrival_ns=[row[0] for row in requests],
        user=[row[1] for row in requests],
        prompt=prompt,
        response=response,
        predicted_response=response,
        cost=[p + r for p, r in zip(prompt, response, strict=True)],
        long=[p + r > 60 for p, r in zip(prompt, response, strict=True)],
        predicted_long=[p + r > 60 for p, r in zip(prompt, response, strict=True)],
    )


def random_stream(seed, count=200, users=3, mean_gap_ns=12_000_000, largest=80):
    """Returns a random stream with many tiny requests, where batches are tight."""
    rng = random.Random(seed)
    now, rows = 0, []
    for _ in range(count):
        now += int(rng.expovariate(1 / mean_gap_ns))
        prompt = rng.choice([1, 2, 3, 7, rng.randint(1, largest)])
        rows.append((now, rng.randrange(users), prompt, rng.randint(1, largest)))
    return stream(rows, list(range(users)))
