#!/usr/bin/env bash
# Copy what git tracks or would track to DIR: copy-tree.sh DIR
# Untracked files come along, ignored ones do not.
set -euo pipefail

target=$1
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ -e "$file" ] || continue # deleted, and not yet committed
    mkdir -p "$target/$(dirname "$file")"
    cp -p "$file" "$target/$file"
done
