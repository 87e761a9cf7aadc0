#!/bin/sh
# What the Makefile needs beside the checks themselves:
#   dev.sh need PROGRAM ...  name each missing program with how to install it; exits 4 if any is
#   dev.sh uv ARGUMENT ...   run the uv on PATH, else a copy in .tools/ that is fetched once
#   dev.sh copy DIR          copy what git tracks or would track to DIR; ignored files stay behind
# PYTHON names the interpreter (default python3), which must be 3.11 or newer; it fetches uv, by
# venv or else by pip.
set -eu

VERSION=0.13.9
PYTHON=${PYTHON:-python3}
status=0

how_to_install() { # program, whose package has its name nearly everywhere
    if command -v apt-get >/dev/null 2>&1; then
        [ "$1" = node ] && set -- nodejs
        echo "apt-get install $1"
    elif command -v brew >/dev/null 2>&1; then
        echo "brew install $1"
    elif command -v dnf >/dev/null 2>&1; then
        echo "dnf install $1"
    else
        echo "install the package $1 (Debian: apt-get install $1; macOS: brew install $1)"
    fi
}

need() {
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
    return $status
}

run_uv() {
    # Trust what the system trusts: a network may have a certificate of its own, and pip heeds it too.
    if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
        export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
    fi
    tools=$(cd "$(dirname "$0")/.." && pwd)/.tools

    # Asked, not only found: a version manager may put a stand-in on PATH that cannot run.
    if uv --version >/dev/null 2>&1; then
        exec uv "$@"
    fi

    if [ ! -x "$tools/uv" ]; then
        echo "uv is not installed: fetching uv $VERSION into $tools" >&2
        mkdir -p "$tools"
        fresh=$(mktemp -d "$tools/fetch.XXXXXX")
        trap 'rm -rf "$fresh"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        if "$PYTHON" -m venv "$fresh/venv" >/dev/null 2>&1; then
            made=$fresh/venv
            pip() { "$made/bin/python" -m pip "$@"; }
        elif "$PYTHON" -m pip --version >/dev/null 2>&1; then
            made=$fresh/target
            pip() { "$PYTHON" -m pip "$@" --target "$made"; }
        else
            echo "missing: venv or pip for $PYTHON, needed to fetch uv." \
                "To install it: apt-get install python3-venv (Debian), or install uv itself" >&2
            exit 4
        fi
        if ! pip install --quiet --disable-pip-version-check --only-binary :all: "uv==$VERSION" >&2; then
            echo "uv $VERSION could not be fetched (see above). Install uv by hand, then try again" >&2
            exit 4
        fi
        # One rename at the end: two calls at the same time cannot see half a file.
        mv -f "$made/bin/uv" "$tools/uv"
        rm -rf "$fresh"
        trap - EXIT
    fi
    exec "$tools/uv" "$@"
}

copy() {
    # No name in this package needs -z, and there is a test for that.
    git ls-files --cached --others --exclude-standard | while IFS= read -r file; do
        [ -e "$file" ] || continue # deleted, and not yet committed
        mkdir -p "$1/$(dirname "$file")"
        cp -p "$file" "$1/$file"
    done
}

verb=$1
shift
case $verb in
    need) need "$@" ;;
    uv) run_uv "$@" ;;
    copy) copy "$@" ;;
    *) echo "unknown: $verb" >&2 && exit 2 ;;
esac
