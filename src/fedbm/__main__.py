"""python -m fedbm: the command line without an installed script."""

from fedbm.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
