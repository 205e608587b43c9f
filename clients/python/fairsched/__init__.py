"""Client of the Fairsched scheduling service; `fairsched.v1` holds the generated messages."""
