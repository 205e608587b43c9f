"""The worker and the gateway of `docker-compose.yml`: real calls, simulated GPUs."""
