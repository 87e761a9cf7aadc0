#!/bin/sh
# Check that programs are there: need.sh git tmux ...
# Names each missing one with how to install it, and exits 4 if any is missing.
# PYTHON names the interpreter (default python3), which must be 3.11 or newer.
set -eu

PYTHON=${PYTHON:-python3}
status=0

how_to_install() { # package, as Debian and Homebrew call it
    if command -v apt-get >/dev/null 2>&1; then
        echo "apt-get install $1"
    elif command -v brew >/dev/null 2>&1; then
        echo "brew install $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "dnf install $1"
    else
        echo "install the package $1 (Debian: apt-get install $1; macOS: brew install $1)"
    fi
}

for program in "$@"; do
    if [ "$program" = python3 ]; then
        if ! "$PYTHON" -c '' >/dev/null 2>&1; then
            echo "missing: $PYTHON (3.11 or newer). To install it: $(how_to_install python3)" >&2
            status=4
        elif ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            echo "too old: $PYTHON is $("$PYTHON" -V 2>&1), 3.11 or newer is needed." \
                "If there is a newer one: make PYTHON=python3.12 ..." >&2
            status=4
        fi
    elif ! command -v "$program" >/dev/null 2>&1; then
        echo "missing: $program. To install it: $(how_to_install "$program")" >&2
        status=4
    fi
done
exit $status
