"""Adapter that keeps the decision log, payloads and snapshots in one data directory."""
