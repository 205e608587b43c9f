"""Adapter: what operators see.  Metrics, log lines, health over HTTP; changes nothing."""
