"""Checks and exports of a decision log, beside the service or without one."""
