#!/bin/sh
# Run uv with the given arguments: the one on PATH, else a copy in .tools/ that is fetched once.
# PYTHON names the interpreter (default python3) that fetches it, by venv or else by pip.
set -eu

VERSION=0.13.9
PYTHON=${PYTHON:-python3}
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
