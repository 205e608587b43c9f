"""Use cases: what happens between a call and its answer.  Knows neither gRPC nor files."""
