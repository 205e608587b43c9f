"""What people would use instead, measured beside the service."""
