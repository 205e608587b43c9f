"""The scheduling core: a pure state machine whose log of decisions is its only truth."""
