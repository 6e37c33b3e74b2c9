"""Run the command line by `python -m fedbm`."""

from fedbm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
