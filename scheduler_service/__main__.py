"""`python -m scheduler_service` is the command line."""

from scheduler_service.cli import main

if __name__ == "__main__":
    main()
