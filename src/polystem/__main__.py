"""`python -m polystem` is the `polystem` command."""

from __future__ import annotations

from polystem.cli.main import main

if __name__ == "__main__":
    main()
