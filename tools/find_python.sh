#!/bin/sh
# Prints the first Python that can run polystem (3.11 to 3.13); says on stderr what to do where there is none.
# A name given as the first argument is the only one tried.
works() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

if [ -n "${1:-}" ]; then
    candidates=$1
else
    candidates='python3 python3.13 python3.12 python3.11'
fi
for candidate in $candidates; do
    if works "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done
{
    for candidate in $candidates; do
        if found=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null); then
            echo "polystem: $candidate is Python $found; 3.11, 3.12 or 3.13 is needed"
        else
            echo "polystem: $candidate: not found, or not a Python that runs"
        fi
    done
    echo "hint: install Python 3.11, 3.12 or 3.13, or name the one to use: make test PYTHON=/path/to/python3.12"
} >&2
exit 1
