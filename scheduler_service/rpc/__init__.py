"""Adapter that serves the API over gRPC."""
