"""Demonstrations: the service at work on real input, and the programs of the containers."""
