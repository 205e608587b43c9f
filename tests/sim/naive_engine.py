"""The engine of the paper, batch by batch and request by request: slow, and obviously right.

Shares no code with the simulator's engine but the shape's numbers.  Also counts tokens as a
method that charges as served sees them, for the counters of the baselines.
"""

from collections import deque


class NaiveQueue:
    """A first-come queue with the calls of a method."""

    def __init__(self):
        self.queue = deque()

    def arrive(self, request):
        self.queue.append(request)

    def head(self):
        return self.queue[0] if self.queue else None

    def take(self):
        return self.queue.popleft()


class NaiveCounters:
    """VTC by its definition: prompt at dispatch, twice each response token as it is made."""

    def __init__(self, workload):
        self.workload = workload
        self.queues = [deque() for _ in workload.users]
        self.counter = [0] * len(workload.users)
        self.last_left = 0

    def arrive(self, request):
        user = self.workload.user[request]
        if not self.queues[user]:
            waiting = [u for u, queue in enumerate(self.queues) if queue]
            floor = min((self.counter[u] for u in waiting), default=self.counter[self.last_left])
            self.counter[user] = max(self.counter[user], floor)
        self.queues[user].append(request)

    def head(self):
        waiting = [u for u, queue in enumerate(self.queues) if queue]
        if not waiting:
            return None
        return self.queues[min(waiting, key=lambda u: (self.counter[u], u))][0]

    def take(self):
        request = self.head()
        user = self.workload.user[request]
        self.queues[user].popleft()
        self.counter[user] += self.workload.prompt[request]
        if not self.queues[user]:
            self.last_left = user
        return request

    def token(self, request, count):
        self.counter[self.workload.user[request]] += 2 * count


def run(workload, shape, queue=None):  # noqa: C901, PLR0912, PLR0915 - in the paper's order
    """Returns start, first token and finish times, dispatch order, and (batches, overflows)."""
    queue = queue or NaiveQueue()
    count = len(workload)
    start, first, finish = [-1] * count, [-1] * count, [-1] * count
    order, decodes, held, left = [], [], [0] * count, list(workload.prompt)
    remaining, reserved, continuation = list(workload.response), 0, None
    now, arrived, batches, overflows = 0, 0, 0, 0
    while any(end < 0 for end in finish):
        while arrived < count and workload.arrival_ns[arrived] <= now:
            queue.arrive(arrived)
            arrived += 1
        load, blocks, chunks = 0, {}, {}
        for request in decodes:
            block = min(shape.decode_block, remaining[request])
            if load + block > shape.token_budget:
                break
            blocks[request] = block
            load += block
        live = sum(held)
        while load < shape.token_budget:
            request = continuation if continuation is not None else queue.head()
            if request is None:
                break
            chunk = min(left[request], shape.token_budget - load)
            need = min(
                workload.prompt[request] + workload.predicted_response[request], shape.kv_capacity
            )
            if shape.kv_rule == "live":
                if live + sum(chunks.values()) + chunk > shape.kv_limit:
                    break
            elif continuation is None and reserved + need > shape.kv_capacity:
                break
            if continuation is None:
                queue.take()
                start[request] = now
                order.append(request)
                reserved += need
            chunks[request] = chunk
            load += chunk
            continuation = request if chunk < left[request] else None
            left[request] -= chunk
        if not load:
            now = workload.arrival_ns[arrived]
            continue
        now += shape.launch_ns + shape.token_ns * max(0, load - shape.knee_tokens)
        while arrived < count and workload.arrival_ns[arrived] <= now:
            queue.arrive(arrived)  # before the batch is booked: it ended after they came
            arrived += 1
        batches += 1
        for request, chunk in chunks.items():
            held[request] += chunk
        for request, block in blocks.items():
            held[request] += block
            remaining[request] -= block
            if first[request] < 0:
                first[request] = now
            if hasattr(queue, "token"):
                queue.token(request, block)
        overflows += sum(held) > shape.kv_capacity
        for request in [r for r in decodes if not remaining[r]]:
            decodes.remove(request)
            finish[request] = now
            held[request] = 0
            reserved -= min(
                workload.prompt[request] + workload.predicted_response[request], shape.kv_capacity
            )
        decodes += [request for request in chunks if not left[request]]
    return start, first, finish, order, (batches, overflows)
