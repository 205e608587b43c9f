"""The evaluation: a serving-aware simulator that drives the service's own core.

What is evaluated here is what is deployed: `core_policy` talks to the scheduling core through the
same commands as the server.  Everything else in this package is what stands around the core in
an experiment: request streams (`workload`, `traces`), the inference engine (`engine`, `kernel`),
methods to compare with (`baselines`), the fluid ideal (`gps`), measures (`metrics`, `bound`), and
the commands an operator calls (`commands`).

The numeric libraries are the extra `sim`; they are imported where they are used, so that the
service starts without them.
"""
