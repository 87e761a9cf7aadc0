# shellcheck shell=sh disable=SC2154
# Runs one agent in its worktree and records how it ended. The lines above set: "$@", the agent's
# argument list, and _aw_record, _aw_worktree, _aw_launch, _aw_keep: an agent may need any other name.

# The agent decides what a signal means to it; this shell outlives it to record its status. Not so
# for HUP: when the terminal is gone, only this shell is told, and its end is what tells the agent.
trap : INT QUIT TERM

record_exit() {
    at=$(date -u +%Y-%m-%dT%H:%M:%S.%6NZ)
    case $at in
    *N*) at=$(date -u +%Y-%m-%dT%H:%M:%SZ) ;; # a date without %N
    esac
    umask 077
    printf '{"schema": 1, "event": "exited", "at": "%s", "job": null, "data": {"exit_code": %d, "launch": "%s"}}\n' \
        "$at" "$1" "$_aw_launch" >>"$_aw_record/exits.jsonl"
    exit "$1"
}

# The server's own environment may hold variables that the caller does not have.
for _aw_name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
    case " $_aw_keep " in
    *" $_aw_name "*) ;;
    *) unset "$_aw_name" ;;
    esac
done

cd -- "$_aw_worktree" || record_exit 97
"$@"
record_exit $?
