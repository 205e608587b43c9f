"""`pytest tests/golden --rewrite` writes the logs as they come out; read the diff line by line."""


def pytest_addoption(parser):
    parser.addoption("--rewrite", action="store_true", help="write golden logs anew")
