"""The Fairsched service: a pure scheduling core, one durable decision log, gRPC around it."""
