# shellcheck shell=bash extended-analysis=false
# Runs a plan: gate, tasks in worktrees of their own, finish. Needs git and bash 3.2.
#
# Nothing of the package that rendered it is needed. The plan stands as data at the end of the
# file. A coordinator starts jobs: subshells that run a task or a command of the gate, and report
# through a pipe. Only the coordinator reacts to signals, looks at time limits and writes what
# belongs to the whole run.
#
# A function answers in the variable `answer`. Names in capitals belong to the caller, all others
# to this file: what the caller exports under such a name is kept aside for the programs started.

# Functions and options that the caller exported are not this program's.
if [[ $- = *[efnu]* ]] || compgen -A function >/dev/null; then exec "$BASH" -p "$0" "$@"; fi

keep_environment() {
    local N
    caller_words=()
    for N in $(compgen -e); do
        case $N in
        _ | *[!a-z0-9_]*) ;;
        *)
            caller_words+=("$N=${!N}")
            export -n "${N?}"
            ;;
        esac
    done
    export -n SHELLOPTS BASHOPTS
    caller_locale=${LC_ALL-}
    export -n LC_ALL
}
keep_environment
LC_ALL=C

# The plan; its data at the end of the file fills these.
plan_sha256='' plan_run_name='' plan_repo=0 plan_base=0 plan_worktree_root=0 plan_max_parallel=2
plan_one_at_once=0 plan_on_failure=continue plan_checks=- plan_changelog_file=- plan_setup_minutes=- plan_preflight=-
plan_backups=- plan_postflight=- plan_rollback=-
plan_parts='' plan_rows='' variable_name=() variable_value=() text=() mark=() digest=() command=() condition=()
agent=() task_name=() task_prompt=() task_branch=() task_base=() task_owns=() task_depends=()
task_when=() task_each=() task_setup=() task_verify=() task_agent=() task_changelog=()
task_estimate=() task_order=() plan_pinned=''

bash_version=${BASH_VERSINFO[0]}
newline=$'\n'
end_of_list="$newline ]"
backslash="\\"
quote_in_quotes="'\\''"
high_byte=$'[!\001-\177]'
control_byte=$'[\001-\010\013-\037\177]'
usage="usage: RUNNER [all|gate|task NAME|finish|status]

  all      the whole run (default): gate, tasks, finish
  gate     preflight, base, backups; no worktree is made
  task     one task of a run whose gate has passed
  finish   postflight, manifest, report; decides from what is recorded
  status   what is recorded of a run

environment:
  DRY_RUN=1       print every command in order, run nothing, change nothing
  RUN_ID=ID       name of the run (letters, digits, '.', '_', '-')
  LOG_ROOT=DIR    keep the run's folder there, not in .worker-runs/ of the repository
  MAX_PARALLEL=N  so many tasks at once
  ONLY=a,b        only these tasks
  RESUME=1        go on with the run RUN_ID
  RERUN=a,b       with RESUME=1: run these again although their agent had started
  PLAN_NAME=TEXT  a value for the plan's variable NAME

exit codes:
    0  done
    1  the work failed
    2  usage or invalid input
    3  refused by the gate or before anything was changed
    4  something needed is missing
   11  busy, another runner holds the run or a branch
  130, 143, 129, 131  interrupted by INT, TERM, HUP, QUIT"

# --- Words and time -------------------------------------------------------------------------

say() { # WHAT WORD [DETAIL]
    local second
    clear_screen
    clock
    second=$((now / 1000000 + local_offset))
    printf '%02d:%02d:%02d %s %s%s\n' $((second / 3600 % 24)) $((second / 60 % 60)) $((second % 60)) \
        "$1" "$2" "${3:+: $3}" >&2
}

put_error() { # MESSAGE [HINT]
    clear_screen
    printf 'error: %s\n' "$1" >&2
    [ -z "${2-}" ] || printf 'hint: %s\n' "$2" >&2
}

# Ends the runner before the run has begun, or a phase that has no more to record.
die() { # CODE MESSAGE [HINT]
    put_error "$2" "${3-}"
    leave "$1"
}

leave() { # CODE
    [ -z "$ticker" ] || kill -KILL "$ticker" 2>/dev/null
    free_claims
    exit "$1"
}

# Sets `now`, in microseconds since the epoch.
if ((bash_version >= 5)); then
    clock() {
        now=${EPOCHREALTIME-}
        now=${now/[!0-9]/}
    }
else
    clock() { now=$(((started_second + SECONDS) * 1000000)); }
fi

start_clock() {
    local zone
    SECONDS=0
    started_second=0
    if ((bash_version >= 5)); then
        printf -v zone '0 %(%z)T' -1
    else
        zone=$(date '+%s %z')
    fi
    started_second=${zone% *}
    zone=${zone#* }
    local_offset=$(((10#${zone:1:2} * 60 + 10#${zone:3:2}) * 60))
    [ "${zone:0:1}" != - ] || local_offset=$((-local_offset))
}

# Answers a time as records state it.
at() { # MICROSECONDS
    local second=$(($1 / 1000000)) days era doe yoe doy mp day month year
    if [ "$second" != "$dated_second" ]; then
        days=$((second / 86400 + 719468))
        era=$((days / 146097))
        doe=$((days - era * 146097))
        yoe=$(((doe - doe / 1460 + doe / 36524 - doe / 146096) / 365))
        doy=$((doe - (365 * yoe + yoe / 4 - yoe / 100)))
        mp=$(((5 * doy + 2) / 153))
        day=$((doy - (153 * mp + 2) / 5 + 1))
        month=$((mp < 10 ? mp + 3 : mp - 9))
        year=$((yoe + era * 400 + (month <= 2)))
        printf -v dated '%04d-%02d-%02dT%02d:%02d:%02d' "$year" "$month" "$day" \
            $((second / 3600 % 24)) $((second / 60 % 60)) $((second % 60))
        dated_second=$second
    fi
    printf -v answer '%s.%06dZ' "$dated" $(($1 % 1000000))
}
dated_second='' dated=''

# Answers the time that it is, as records state it; sets `now`.
stamp() {
    clock
    at "$now"
}

# Answers the seconds from one time to another.
seconds_between() { # FROM TO
    local spent=$((($2 - $1) / 1000))
    ((spent >= 0)) || spent=0
    printf -v answer '%d.%03d' $((spent / 1000)) $((spent % 1000))
}

# Answers a word as a shell must read it.
quote_word() { # WORD
    case $1 in
    '' | *[!A-Za-z0-9@%+=:,./_-]*) answer="'${1//\'/$quote_in_quotes}'" ;;
    *) answer=$1 ;;
    esac
}

# Answers words as a shell must read them.
quote_words() { # WORD...
    local line='' word
    for word; do
        quote_word "$word"
        line+="${line:+ }$answer"
    done
    answer=$line
}

# Answers a text for a terminal: its control characters but tabs and line ends as escapes.
visible() { # TEXT
    local code char shown script=''
    answer=$1
    # shellcheck disable=SC2254 # patterns
    case $1 in
    *$control_byte* | *$'\302'[$'\200'-$'\237']*) ;;
    *) return ;;
    esac
    for ((code = 1; code < 160; code++)); do
        if ((code == 9 || code == 10 || (code > 31 && code < 127))); then continue; fi
        bytes_of "$code"
        char=$answer
        printf -v shown '\\\\x%02x' "$code"
        ((code < 128)) || shown='\\xc2'$shown
        script+="s/$char/$shown/g$newline"
    done
    # A line break at the end of it stays.
    answer=$(printf '%s.\n' "$1" | sed -e "$script")
    answer=${answer%.}
}

# Answers an item as part of a name.
slug() { # ITEM POSITION
    local rest=$1 made='' part
    case $rest in
    '' | *[!A-Za-z0-9_-]*) ;;
    *)
        if ((${#rest} <= 40)); then
            answer=$rest
            return
        fi
        ;;
    esac
    while [ -n "$rest" ] && ((${#made} <= 40)); do
        part=${rest%%[!A-Za-z0-9_-]*}
        rest=${rest#"$part"}
        made+=$part
        part=${rest%%[A-Za-z0-9_-]*}
        rest=${rest#"$part"}
        made+=${part:+-}
    done
    made=${made:0:40}
    while [ "$made" != "${made#-}" ]; do made=${made#-}; done
    while [ "$made" != "${made%-}" ]; do made=${made%-}; done
    answer=${made:-item}-$2
}

# Answers a path without `.`, `..` and doubled slashes; a relative one counts from FOLDER.
absolute() { # PATH FOLDER
    local path=$1 part made=''
    [ "${path:0:1}" = / ] || path=$2/$path
    local IFS=/
    for part in $path; do
        case $part in
        '' | .) ;;
        ..) made=${made%/*} ;;
        *) made+=/$part ;;
        esac
    done
    answer=${made:-/}
}

# Answers a path; a relative one counts from the repository's root.
rooted() { # PATH
    answer=$1
    [ "${1:0:1}" = / ] || answer=$root/$1
}

is_name() { # WORD
    case $1 in
    '' | [!A-Za-z0-9]* | *[!A-Za-z0-9_-]*) return 1 ;;
    esac
    ((${#1} <= 64))
}

# Whether git takes this as a branch's name (git-check-ref-format).
is_branch() { # WORD
    case $1 in
    '' | @ | HEAD | -* | /* | */ | *. | .* | */.* | *.lock | *.lock/* | *..* | *@\{* | *//*) return 1 ;;
    *[[:cntrl:]\ ~^:?*\[\\]*) return 1 ;;
    esac
}

# --- JSON -----------------------------------------------------------------------------------

# Sets `before` and `behind` to what stands around the first place of a word; fails when it is not
# there. Unlike ${x#*word} it takes no more time than the text is long.
cut() { # TEXT WORD
    before=${1%%"$2"*}
    behind=''
    ((${#before} < ${#1})) || return 1
    behind=${1:${#before}+${#2}}
}

# Answers a text as a JSON string.
json_string() { # TEXT
    case $1 in
    *[!\ \!#-[\]-~]*) json_escaped "$1" ;;
    *) answer=\"$1\" ;;
    esac
}

# Sets `quoted` to texts as JSON strings.
json_strings() { # TEXT...
    local value quote='"'
    quoted=()
    case $* in
    *[!\ \!#-[\]-~]*)
        for value; do
            json_string "$value"
            quoted+=("$answer")
        done
        ;;
    *)
        quoted=("${@/#/$quote}")
        quoted=("${quoted[@]/%/$quote}")
        ;;
    esac
}

json_escaped() { # TEXT
    local value=$1 number char code
    case $value in
    *[\"\\]*)
        value=${value//"$backslash"/$backslash$backslash}
        value=${value//\"/$backslash\"}
        ;;
    esac
    case $value in
    *[[:cntrl:]]*)
        value=${value//"$newline"/${backslash}n}
        value=${value//$'\t'/${backslash}t}
        value=${value//$'\r'/${backslash}r}
        value=${value//$'\b'/${backslash}b}
        value=${value//$'\f'/${backslash}f}
        for ((number = 1; number < 32; number++)); do
            printf -v code '%03o' "$number"
            # shellcheck disable=SC2059 # the format is the character
            printf -v char "\\$code"
            printf -v code '\\u%04x' "$number"
            value=${value//"$char"/$code}
        done
        ;;
    esac
    # shellcheck disable=SC2254 # a pattern
    case $value in
    *$high_byte*) require_utf8 "$value" ;;
    *) answer=$value ;;
    esac
    answer="\"$answer\""
}

# Answers a text; bytes that are not UTF-8 are written as the surrogates that Python takes.
require_utf8() { # TEXT
    local rest=$1 more=$'[\200-\277]' made='' char code
    local one=$'[\001-\177]' two=$'[\302-\337]' three=$'[\341-\354\356-\357]' four=$'[\361-\363]'
    local low=$'\340[\240-\277]' middle=$'\355[\200-\237]' fifth=$'\360[\220-\277]'
    local sixth=$'\364[\200-\217]'
    rest=${rest//$two$more/x}
    rest=${rest//$three$more$more/x}
    rest=${rest//$low$more/x}
    rest=${rest//$middle$more/x}
    rest=${rest//$four$more$more$more/x}
    rest=${rest//$fifth$more$more/x}
    rest=${rest//$sixth$more$more/x}
    answer=$1
    # shellcheck disable=SC2254 # a pattern
    case $rest in
    *$high_byte*) ;;
    *) return ;;
    esac
    rest=$1
    while [ -n "$rest" ]; do
        # shellcheck disable=SC2254 # patterns
        case $rest in
        $one*) char=1 ;;
        $two$more*) char=2 ;;
        $three$more$more* | $low$more* | $middle$more*) char=3 ;;
        $four$more$more$more* | $fifth$more$more* | $sixth$more$more*) char=4 ;;
        *)
            printf -v code '%d' "'${rest:0:1}"
            printf -v code '\\udc%02x' $((code & 255))
            made+=$code
            rest=${rest:1}
            continue
            ;;
        esac
        made+=${rest:0:char}
        rest=${rest:char}
    done
    answer=$made
}

# Answers null for a text that is missing, else a JSON string.
json_optional() { # [TEXT]
    if [ -n "$1" ]; then json_string "$1"; else answer=null; fi
}

# Answers a JSON list whose brackets stand at a depth.
json_list() { # DEPTH ITEM...
    local pad='' item made='' items=()
    answer='[]'
    (($# > 1)) || return 0
    printf -v pad '%*s' "$1" ''
    shift
    for item; do items+=("$pad ${item//"$newline"/$newline$pad }"); done
    # At once: a text that grows by each of many items is copied each time.
    printf -v made ",$newline%s" "${items[@]}"
    answer="[${made#,}$newline$pad]"
}

# Answers the text that a JSON string stands for.
json_text() { # STRING
    local rest=${1#\"} made='' number low before behind
    rest=${rest%\"}
    answer=$rest
    case $rest in
    *"$backslash"*) ;;
    *) return ;;
    esac
    while cut "$rest" "$backslash"; do
        made+=$before
        rest=$behind
        case $rest in
        n*) made+=$newline ;;
        t*) made+=$'\t' ;;
        r*) made+=$'\r' ;;
        b*) made+=$'\b' ;;
        f*) made+=$'\f' ;;
        u*)
            number=$((16#${rest:1:4}))
            rest=${rest:4}
            low=0
            case $rest in
            ?"${backslash}u"[dD][c-fC-F]*) low=$((16#${rest:3:4})) ;;
            esac
            if ((number >= 0xd800 && number < 0xdc00 && low)); then
                number=$((0x10000 + (number - 0xd800) * 1024 + low - 0xdc00))
                rest=${rest:6}
            fi
            bytes_of "$number"
            made+=$answer
            ;;
        *) made+=${rest:0:1} ;;
        esac
        rest=${rest:1}
    done
    answer=$made$rest
}

# Answers the UTF-8 bytes of a character; a lone low surrogate stands for a byte.
bytes_of() { # NUMBER
    local n=$1 made='' code part
    if ((n < 0x80)); then
        set -- "$n"
    elif ((n >= 0xdc80 && n <= 0xdcff)); then
        set -- $((n - 0xdc00))
    elif ((n < 0x800)); then
        set -- $((0xc0 | n >> 6)) $((0x80 | n & 63))
    elif ((n < 0x10000)); then
        set -- $((0xe0 | n >> 12)) $((0x80 | n >> 6 & 63)) $((0x80 | n & 63))
    else
        set -- $((0xf0 | n >> 18)) $((0x80 | n >> 12 & 63)) $((0x80 | n >> 6 & 63)) $((0x80 | n & 63))
    fi
    for part; do
        printf -v code '%03o' "$part"
        # shellcheck disable=SC2059 # the format is the character
        printf -v code "\\$code"
        made+=$code
    done
    answer=$made
}

# Answers a value of a record's own level as it stands there; fails when there is none.
json_raw() { # RECORD KEY
    local before behind rest
    answer=''
    cut "$1" "$newline \"$2\": " || return 1
    rest=$behind
    case $rest in
    "[$newline"*) rest=${rest%%"$end_of_list"*}$end_of_list ;;
    *)
        rest=${rest%%"$newline"*}
        rest=${rest%,}
        ;;
    esac
    answer=$rest
}

# Answers a scalar of a record's own level, empty for null.
json_get() { # RECORD KEY
    json_raw "$1" "$2" || return 1
    case $answer in
    null) answer='' ;;
    \"*) json_text "$answer" ;;
    esac
}

# Sets variables to scalars of a record's own level.
get_all() { # RECORD KEY VARIABLE...
    local from=$1
    shift
    while (($#)); do
        json_get "$from" "$1"
        printf -v "$2" %s "$answer"
        shift 2
    done
}

# Answers a record with a scalar of its own level replaced.
json_set() { # RECORD KEY VALUE
    local before behind rest
    cut "$1" "$newline \"$2\": "
    answer="$before$newline \"$2\": $3"
    cut "$behind" "$newline"
    rest=$newline$behind
    # A comma stands behind every value but the last.
    case $rest in
    "$newline}"*) answer+=$rest ;;
    *) answer+=,$rest ;;
    esac
}

# Sets `answer` to what a file holds, without its last newline; fails when it cannot be read.
read_file() { # PATH
    answer=''
    [ -r "$1" ] && [ -f "$1" ] || return 1
    IFS= read -r -d '' answer <"$1"
    answer=${answer%"$newline"}
}

make_folder() { # PATH
    [ -d "$1" ] || mkdir -p -- "$1"
}

# Whether anything stands at a path, a link that leads nowhere too.
exists() { # PATH
    [ -e "$1" ] || [ -L "$1" ]
}

# Sets `answer` to a record; ends the runner when it is damaged, fails when there is none.
read_record() { # PATH
    read_file "$1" || return 1
    case $answer in
    "{$newline \"schema\": 1,$newline"*"$newline}") ;;
    *) die 1 "the record $1 is damaged" "look at the file" ;;
    esac
}

# Replaces a file at once: under another name, then renamed.
write_file() { # PATH TEXT [MODE]
    local temporary=$1.$$.${this_job:-0}.tmp
    if { printf '%s' "$2" >"$temporary"; } 2>/dev/null &&
        { [ -z "${3-}" ] || chmod "$3" "$temporary"; } &&
        { LC_ALL=C mv -f -- "$temporary" "$1" || mv -f -- "$temporary" "$1"; } 2>/dev/null; then
        return 0
    fi
    write_error=$({ printf '%s' "$2" >"$temporary"; } 2>&1)
    write_error=${write_error##*: }
    rm -f -- "$temporary"
    return 1
}
write_error=''

# --- The plan's rows ------------------------------------------------------------------------

# Sets `value` to a placeholder's value; fails when it is not known (an item in a dry run).
lookup() { # NAME
    local place
    case $1 in
    item)
        value=$item
        return $((!item_known))
        ;;
    RUN_ID) value=$run_id && return ;;
    RUN_DIR) value=$run_dir && return ;;
    REPO_ROOT) value=$root && return ;;
    esac
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        if [ "${variable_name[place]}" = "$1" ]; then
            value=${variable_value[place]}
            return
        fi
    done
    return 1
}

# What a mapping's words may ask for: the worktree, the prompt's file and the name of the task whose
# agent is called.
for_agent=()

# Sets `value` to what a word of a mapping asks for, which is no variable of the plan.
lookup_for_agent() { # NAME
    ((${#for_agent[@]})) || return 1
    case $1 in
    worktree) value=${for_agent[0]} ;;
    git_common_dir) value=$common ;;
    prompt_file) value=${for_agent[1]} ;;
    name) value=${for_agent[2]} ;;
    record_dir) value=$run_dir/tasks/${for_agent[2]} ;;
    *) return 1 ;;
    esac
}

# Answers a text of the plan with its placeholders replaced, each for the place it stands in.
fill() { # TEXT
    local rest=${text[$1]} made='' word kind='' char hole before behind
    if [ -z "${mark[$1]-}" ]; then
        answer=$rest
        return
    fi
    for word in ${mark[$1]}; do
        if [ -z "$kind" ]; then
            kind=$word
            continue
        fi
        # A closing brace inside of an expansion is not understood by every bash.
        hole="{$word}"
        cut "$rest" "$hole"
        made+=$before
        rest=$behind
        if [ "$kind" = agent ]; then
            lookup_for_agent "$word" || value=$hole
        elif [ "$kind" = keep ] || ! lookup "$word"; then
            value=$hole
            kind=raw
        fi
        case $kind in
        slug) [ "$word" != item ] || value=$item_slug ;;
        word) value="'${value//\'/$quote_in_quotes}'" ;;
        single) value=${value//\'/$quote_in_quotes} ;;
        double)
            for char in "$backslash" '"' '$' '`'; do
                value=${value//"$char"/$backslash$char}
            done
            ;;
        esac
        made+=$value
        kind=''
    done
    answer=$made$rest
}

# Sets c_name, c_kind, c_words, c_when, c_ms, c_limit, c_artifact, c_check.
take_command() { # COMMAND
    # shellcheck disable=SC2086 # words without blanks
    set -- ${command[$1]}
    c_name=$1 c_kind=$2 c_words=$3 c_when=$4 c_ms=$5 c_limit=$6 c_artifact=$7 c_check=$8
}

# Sets a_cli and so on.
take_agent() { # AGENT
    # shellcheck disable=SC2086 # words without blanks
    set -- ${agent[$1]}
    a_cli=$1 a_work_dir_arg=$2 a_args=$3 a_prompt_mode=$4 a_prompt_arg=$5 a_log_name=$6 a_ms=$7
    a_limit=$8 a_env=$9
    a_commit_leftovers=${10} a_allow_no_change=${11} a_rerun_interrupted=${12}
    a_zero_without_work=${13} a_exit_codes=${14} a_needs=${15} a_hide=${16}
}

# Sets t_name and so on.
take_row() { # TASK
    t_name=${task_name[$1]} t_prompt=${task_prompt[$1]} t_base=${task_base[$1]}
    t_owns=${task_owns[$1]} t_when=${task_when[$1]} t_each=${task_each[$1]}
    t_setup=${task_setup[$1]} t_verify=${task_verify[$1]} t_agent=${task_agent[$1]}
    t_changelog=${task_changelog[$1]}
}

# Answers the members of a list as words.
listed() { # LIST
    answer=''
    [ "$1" = - ] || answer=${1//,/ }
}

# Sets `argv`.
command_argv() { # COMMAND
    local word
    take_command "$1"
    argv=()
    [ "$c_kind" = argv ] || argv=(bash -c)
    listed "$c_words"
    for word in $answer; do
        fill "$word"
        argv+=("$answer")
    done
}

# Answers a command in clear text.
command_clear() { # COMMAND
    local word made=''
    take_command "$1"
    listed "$c_words"
    for word in $answer; do
        fill "$word"
        [ "$c_kind" = shell ] || quote_word "$answer"
        made+="${made:+ }$answer"
    done
    answer=$made
}

# Makes a task of the run the one whose values count.
use_task() { # NUMBER
    take_row "${x_row[$1]}"
    take_agent "$t_agent"
    item=${x_item[$1]} item_known=${x_has_item[$1]} item_slug=${x_slug[$1]}
}

use_no_task() {
    item='' item_known=0 item_slug=''
}

# Sets `argv` to a task's agent.
agent_argv() { # NUMBER PROMPT PROMPT_FILE
    local word
    use_task "$1"
    for_agent=("${x_worktree[$1]}" "$3" "${x_name[$1]}")
    fill "$a_cli"
    case $answer in
    /*) ;;
    */*) answer=$root/$answer ;;
    esac
    argv=("$answer")
    listed "$a_args"
    for word in $answer; do
        fill "$word"
        argv+=("$answer")
    done
    fill "$a_work_dir_arg"
    [ -z "$answer" ] || with_flag "$answer" "${x_worktree[$1]}"
    fill "$a_prompt_arg"
    case $a_prompt_mode in
    argument) with_flag "$answer" "$2" ;;
    file) with_flag "$answer" "$3" ;;
    esac
}

# Adds a flag and its value to `argv`; one that ends in `=` is joined with it.
with_flag() { # FLAG VALUE
    case $1 in
    '') argv+=("$2") ;;
    *=) argv+=("$1$2") ;;
    *) argv+=("$1" "$2") ;;
    esac
}

# --- Processes ------------------------------------------------------------------------------

git_plain() {
    LC_ALL=C git -c core.fsmonitor=false -c gc.auto=0 -c maintenance.auto=false -c core.hooksPath=/dev/null \
        "$@" 3>&- 4>&- 5>&- </dev/null
}

# Sets `marked` to the pids, each with blanks around it, of the processes whose environment holds a
# mark that stands by itself, or begins.
find_marked() { # MARK exact|prefix
    local pattern=$1 char file
    for char in "$backslash" . '*' '[' '^' '$'; do pattern=${pattern//"$char"/$backslash$char}; done
    [ "$2" = prefix ] || pattern+='$'
    marked=' '
    set +f
    # shellcheck disable=SC2013 # paths without blanks
    for file in $(grep -lz -e "^$pattern" /proc/[0-9]*/environ 2>/dev/null); do
        file=${file#/proc/}
        marked+="${file%/environ} "
    done
    set -f
}

# Whether a process that was started after PID, at a time, carries a mark. Where there is no /proc
# only groups are looked at.
is_marked() { # MARK PID TIME
    local pid load last word words
    [ -r /proc/self/stat ] || return 1
    # proc(5): the last word is the youngest process. Within a second numbers do not come around.
    IFS= read -r load </proc/loadavg
    last=${load##* }
    clock
    if ((last < $2 || now - $3 > 1000000)); then
        find_marked "$1" exact
        [ "$marked" != ' ' ]
        return
    fi
    for ((pid = $2 + 1; pid <= last; pid++)); do
        [ -r "/proc/$pid/environ" ] || continue
        # All at once, without what parts the words: reading them one by one is dear.
        if ((bash_version >= 5)); then
            words=''
            IFS= read -r -N 4000000 words <"/proc/$pid/environ"
            case $words in *"$1"*) ;; *) continue ;; esac
        fi
        while IFS= read -r -d '' word; do
            [ "$word" != "$1" ] || return 0
        done <"/proc/$pid/environ"
    done 2>/dev/null
    return 1
}

# Prints the processes of a tree but zombies, each as pid:start: those in the groups of `roots`, the
# `marked` ones, those of `known`, and their descendants. It reads /proc/PID/stat, each line behind
# its path (a command may hold anything), or the lines of `ps`.
# shellcheck disable=SC2016 # a program of awk
tree_program='
function take(words, into,    count, word, place) {
    count = split(words, word, " ")
    for (place = 1; place <= count; place++) into[word[place]]
}
BEGIN { take(roots, root); take(marked, inside); take(known, old) }
{
    is_marked = mark != "" && index($0 " ", " " mark)
    # proc(5): after the command 1 state, 2 parent, 3 group, 20 start.
    if (sub(/^\/proc\//, "")) {
        pid = $0
        sub(/\/.*/, "", pid)
        if (!sub(/.*\) /, "")) next
        state = $1; ppid = $2; pgid = $3; since = $20
    } else {
        pid = $1; ppid = $2; pgid = $3; state = $4; since = $5 "-" $6 "-" $7 "-" $8 "-" $9
    }
    if (is_marked) inside[pid]
    start[pid] = since; parent[pid] = ppid; group[pid] = pgid; dead[pid] = state ~ /^[ZX]/
}
END {
    do {
        grew = 0
        for (pid in start) {
            if (pid == self || dead[pid] || pid in done) continue
            if (pid in inside || pid in root || group[pid] in root || parent[pid] in done ||
                (pid ":" start[pid]) in old) {
                done[pid]
                grew = 1
            }
        }
    } while (grew)
    # A parent first: a shell whose child is ended before it goes on to its next command.
    do {
        grew = 0
        for (pid in done) {
            if (pid in shown || (parent[pid] in done && !(parent[pid] in shown))) continue
            shown[pid]
            print pid ":" start[pid]
            grew = 1
        }
    } while (grew)
}'

# Sets `alive` to the living processes of a tree; `known` are those seen before.
members() { # MARK exact|prefix ROOT...
    local mark='' one
    alive='' marked=' '
    if [ -r /proc/self/stat ]; then
        find_marked "$1" "$2"
        (($# > 2)) || [ "$marked$known" != '  ' ] || return 0
    else
        mark=$1
        [ "$2" = prefix ] || mark+=' '
    fi
    set +f
    for one in $(
        if [ -z "$mark" ]; then LC_ALL=C grep -Hs '' /proc/[0-9]*/stat; else
            ps axeww -o pid=,ppid=,pgid=,stat=,lstart=,command=
        fi | mark=$mark LC_ALL=C awk -v roots="${*:3}" -v marked="$marked" -v known="$known" \
            -v self="$$" "BEGIN { mark = ENVIRON[\"mark\"] } $tree_program"
    ); do
        case $known in *" $one "*) ;; *) known+="$one " ;; esac
        case $spared in *" ${one%:*} "*) ;; *) alive+="$one " ;; esac
    done
    set -f
}

# Ends processes: those in the groups of the roots, their descendants, all that carry the mark.
# TERM, KILL after a grace, then checked; answers the pids that are still alive.
end_tree() { # MARK exact|prefix ROOT...
    local known=' ' signalled signal patience until quiet one pause
    for signal in TERM KILL; do
        patience=3000000
        [ "$signal" = TERM ] || patience=2000000
        clock
        until=$((now + patience))
        signalled=' ' quiet=0 pause=20
        while ((quiet < 2 && now < until)); do
            members "$@"
            quiet=$((quiet + 1))
            # One in the middle of an exec shows no environment: look twice.
            for one in $alive; do
                quiet=0
                case $signalled in *" $one "*) continue ;; esac
                signalled+="$one "
                kill "-$signal" "${one%:*}" 2>/dev/null
            done
            # A look costs several processes: those that take their time are not looked at all the time.
            if ((quiet == 0)); then
                printf -v one '0.%03d' "$pause"
                sleep "$one"
                pause=$((pause < 150 ? pause * 3 / 2 : 200))
            elif ((quiet == 1)); then
                sleep 0.01
            fi
            clock
        done
        if ((quiet == 2)); then
            answer=''
            return 0
        fi
    done
    members "$@"
    answer=''
    for one in $alive; do answer+="${answer:+, }${one%:*}"; done
    [ -z "$answer" ]
}
spared=' '

# Runs a program to its end; then nothing that it started in its group is left. Sets `outcome`
# (passed, failed, timed-out, lost) and `code`; why it was lost stands in `why`. Only for jobs.
run_program() { # MILLISECONDS MARK FOLDER STDIN LOG WORD...
    local ms=$1 mark=AGENT_WORKERS_RUN=$2 folder=$3 source=$4 log=$5 pid
    shift 5
    outcome=lost code='' why=''
    kill -0 "$$" 2>/dev/null || exit 1
    if ! { : >>"$log"; } 2>/dev/null; then
        why="cannot write $log"
        return
    fi
    if [ ! -d "$folder" ]; then
        why="cannot run '$1': the folder $folder is not there"
        return
    fi
    # What an agent finds on a PATH of its own is not known here.
    if ((!${#agent_words[@]})) && ! is_program "$folder" "$1"; then
        why="cannot run '$1': $why"
        return
    fi
    alarmed=0
    clock
    local began=$now until=$((now + ms * 1000))
    tell "deadline|$this_job|$until"
    # Only here, where something is waited for: see be_job.
    trap 'alarmed=1' USR1
    set -m
    (become "$@") &
    pid=$!
    set +m
    outcome=''
    while :; do
        wait "$pid"
        code=$?
        if ((!alarmed || code <= 128)); then break; fi
        alarmed=0
        clock
        if ((now >= until)) && kill -0 "$pid"; then
            outcome=timed-out
            code=''
            break
        fi
    done
    trap '' USR1
    # Of a program that ends in the moment in which a signal ends the wait, bash may lose the code.
    if ((code < 0 || code > 255)); then
        outcome=timed-out code=''
        if ((now < until)); then outcome=lost why='its exit code was lost'; fi
    fi
    if [ -n "$outcome" ] || kill -0 -- "-$pid" || is_marked "$mark" "$pid" "$began"; then
        if ! end_tree "$mark" exact "$pid"; then
            outcome=lost code=''
            why="could not end the processes $answer"
            return
        fi
    fi
    [ -z "$outcome" ] || return
    outcome=passed
    ((code == 0)) || outcome=failed
    if ((code == 126 || code == 127)) && ! is_program "$folder" "$1"; then
        outcome=lost code=''
        why="cannot run '$1': $why"
    fi
}

# Whether a program is there; if not, `why` says it as the system does.
is_program() { # FOLDER WORD
    local path=$2
    case $2 in
    /*) ;;
    */*) path=$1/$2 ;;
    *) ! type -P "$2" >/dev/null || return 0 ;;
    esac
    why='No such file or directory'
    [ -e "$path" ] || return 1
    why='Permission denied'
    [ -f "$path" ] && [ -x "$path" ]
}

# Becomes a program in the environment that the caller gave; see run_program.
become() { # WORD...
    trap - INT TERM HUP QUIT USR1 PIPE
    exec 3>&- 4>&- 5>&-
    if [ -n "$caller_locale" ]; then export LC_ALL=$caller_locale; else unset LC_ALL; fi
    exec <"$source" >>"$log" 2>&1 || exit 126
    umask "$caller_umask"
    cd -- "$folder" || exit 126
    export "${mark?}"
    # `env` would take a program with "=" in its name for a variable.
    case $1 in *=*) set -- sh -c 'exec "$@"' sh "$@" ;; esac
    if ((${#caller_words[@]} + ${#agent_words[@]})); then
        set -- env ${caller_words[@]+"${caller_words[@]}"} \
            ${agent_words[@]+"${agent_words[@]}"} "$@"
    fi
    exec "$@"
}
agent_words=()

# --- Jobs -----------------------------------------------------------------------------------

# Opens the pipe through which jobs report, and catches signals. An old bash forgets what it has
# read of a line when the time for it is up: it gets a line each second instead of a time.
start_jobs() { # FOLDER
    local pipe=$1/.pipe.$$
    live_jobs='' last_job=0 trouble='' dirty=0 last_tick=0
    job_pid=() job_deadline=() job_task=()
    if ! mkfifo -- "$pipe" || ! exec 3<>"$pipe"; then
        die 1 "cannot make $pipe" "free space, then go on with RESUME=1"
    fi
    rm -f -- "$pipe" &
    if ((bash_version < 4)) && [ -z "$ticker" ]; then
        (
            trap '' INT TERM HUP QUIT
            exec 4>&- </dev/null >/dev/null 2>&1
            while kill -0 "$$" && echo tick >&3; do sleep 1; done
        ) &
        ticker=$!
    fi
    trap 'interrupted=${interrupted:-INT}' INT
    trap 'interrupted=${interrupted:-TERM}' TERM
    trap 'interrupted=${interrupted:-QUIT}' QUIT
    # A HUP that was ignored at the start stays ignored (nohup).
    trap 'interrupted=${interrupted:-HUP}' HUP
}

# Starts a job; `last_job` is its number.
start_job() { # TASK|- FUNCTION WORD...
    last_job=$((last_job + 1))
    job_deadline[last_job]=0
    job_task[last_job]=$1
    live_jobs+="${live_jobs:+ }$last_job"
    shift
    set -m
    be_job "$@" &
    job_pid[last_job]=$!
    set +m
}

ticker='' interrupted=''

be_job() { # FUNCTION WORD...
    this_job=$last_job my_claims=()
    trap - INT TERM HUP QUIT
    # The coordinator repeats what it says of a time that is over as long as the job is there: it must
    # not end what the job becomes, nor what the job is writing.
    trap '' USR1
    exec 4>&- </dev/null 2>/dev/null
    "$@"
}

# Reports to the coordinator, in one write: fields with "|" between them. Only for jobs.
tell() { # LINE
    printf '%s\n' "${1//"$newline"/ }" >&3
}

# Sets `report` to the next report; fails when none comes in time.
next_report() { # SECONDS
    local first=''
    # Only the first letter is waited for: a time limit makes each letter dear. One that comes in the
    # last moment is there all the same.
    ((bash_version < 4)) || IFS= read -r -t "$1" -n 1 -u 3 first || [ -n "$first" ] || return
    IFS= read -r -u 3 report
    report=$first$report
}

# Whether a report waits; an old bash cannot tell, and takes what comes before the next tick.
has_report() {
    ((bash_version < 4)) || read -r -t 0 -u 3
}

# Takes all reports that wait of some kinds. What shows the end of them is not written by this
# process: a pipe may be full.
take_waiting() { # PATTERN
    (printf 'end\n' >&3) &
    while next_report 1 && [ "$report" != end ]; do
        # shellcheck disable=SC2254 # a pattern
        case $report in $1) take_report "$report" ;; esac
    done
}

# One turn of the coordinator: a report is taken, or a second passes.
turn() {
    if [ -z "$interrupted" ] && next_report "$tick"; then
        take_report "$report"
        while ((bash_version >= 4)) && has_report && next_report 1; do take_report "$report"; done
    fi
    if [ -n "$interrupted" ]; then
        stop_jobs
        return
    fi
    clock
    ((now - last_tick < 200000 && now >= last_tick)) || look_at_jobs
    # Between tasks it is written once, when the next ones have been started.
    ((!dirty || in_tasks)) || save_manifest
}
tick=1

# Ends what has had its time, notices jobs that died, shows progress.
look_at_jobs() {
    local job
    last_tick=$now
    tick=1
    for job in $live_jobs; do
        if ((job_deadline[job] > 0)); then
            if ((now >= job_deadline[job])); then
                kill -USR1 "${job_pid[job]}" 2>/dev/null
            elif ((job_deadline[job] - now < 1000000)); then
                seconds_between "$now" $((job_deadline[job] + 20000))
                tick=$answer
            fi
        fi
        if ! kill -0 "${job_pid[job]}" 2>/dev/null; then
            # Its last words may still be in the pipe.
            take_waiting '*'
            job_over "$job" lost
        fi
    done
    show_progress
}

take_report() { # LINE
    local kind=${1%%|*} rest=${1#*|} job
    job=${rest%%|*}
    rest=${rest#*|}
    case $kind in
    tick) ;;
    deadline)
        job_deadline[job]=$rest
        clock
        if ((rest - now < 1000000)); then
            seconds_between "$now" $((rest + 20000))
            tick=$answer
        fi
        ;;
    event) take_event "$job" "$rest" ;;
    say) say "${rest%%|*}" "${rest#*|}" ;;
    record)
        read_result "${job_task[job]}"
        dirty=1
        ;;
    agent)
        agent_has_started "${job_task[job]}" "$rest"
        dirty=1
        ;;
    step) step_report=$rest ;;
    over) job_over "$job" "$rest" ;;
    esac
}

take_event() { # JOB TIME|WORD|PHASE|NAME|DATA
    local rest=$2 time word phase who=- number
    time=${rest%%|*} rest=${rest#*|}
    word=${rest%%|*} rest=${rest#*|}
    phase=${rest%%|*} rest=${rest#*|}
    [ "${job_task[$1]}" = - ] || who=${x_name[job_task[$1]]}
    if [ "$word $phase" = "started agent" ]; then
        number=${job_task[$1]}
        x_agent_started[number]=1
        say "$who" "agent started"
    fi
    ((whole)) || return 0
    make_event "$time" "$word" "$phase" "$who" "${rest%%|*}" "${rest#*|}"
    put_event "$answer"
}

job_over() { # JOB HOW
    local job made=''
    case " $live_jobs " in *" $1 "*) ;; *) return ;; esac
    for job in $live_jobs; do
        [ "$job" = "$1" ] || made+="${made:+ }$job"
    done
    live_jobs=$made
    job_deadline[$1]=0
    over_how=$2
    wait_for "${job_pid[$1]}"
    [ "${job_task[$1]}" != - ] || return 0
    # The job became `mv`, which has taken the record to its place if all is well.
    if [ "$2" = "done" ] && [ -e "$run_dir/tasks/${x_name[job_task[$1]]}/.result" ]; then
        over_how='mv failed'
    fi
    task_over "${job_task[$1]}" "$over_how"
}

# Waits for the end of a job: a signal ends a wait, and not the job.
wait_for() { # PID
    local tries
    for ((tries = 0; tries < 100; tries++)); do
        wait "$1"
        if (($? <= 128)) || ! kill -0 "$1"; then break; fi
    done 2>/dev/null
}

# Sets `unended` to where an agent would note its end that has not; being ended is no end.
find_unended() { # [NUMBER]
    local number path
    unended=()
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${1-$number}" = "$number" ] || continue
        path=$run_dir/tasks/${x_name[number]}
        if [ -e "$path/.agent-started" ] && [ ! -s "$path/.agent-exit" ]; then
            unended+=("$path/.agent-exit")
        fi
    done
}

# Removes what was noted for the case that tasks have to go on; those that may have to keep it.
forget_notes() { # [NUMBER]
    local number name paths=()
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${x_status[number]}" != interrupted ] && [ "${1-$number}" = "$number" ] || continue
        for name in .agent-started .agent-exit .job; do
            name=$run_dir/tasks/${x_name[number]}/$name
            [ ! -e "$name" ] || paths+=("$name")
        done
        ((${#paths[@]} < 500)) || { rm -f -- "${paths[@]}" && paths=(); }
    done
    ((!${#paths[@]})) || rm -f -- "${paths[@]}"
}

# Ends the jobs of a coordinator that was killed.
end_old_jobs() { # [NUMBER]
    local number file pid start
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${1-$number}" = "$number" ] || continue
        file=$run_dir/tasks/${x_name[number]}/.job
        [ -e "$file" ] || continue
        pid='' start=''
        { IFS= read -r pid && IFS= read -r pid && IFS= read -r start; } <"$file"
        case $pid in '' | *[!0-9]*) continue ;; esac
        process_start "$pid"
        [ -z "$start" ] || [ "$answer" != "$start" ] || kill -KILL "$pid" 2>/dev/null
    done
}

forget_ends() {
    ((!${#unended[@]})) || rm -f -- "${unended[@]}"
}

# Ends all jobs with everything that they started.
stop_jobs() {
    local job
    spared=' '
    for job in $live_jobs; do
        # As long as they are there they are the parents of what they started.
        kill -STOP "${job_pid[job]}" 2>/dev/null
        spared+="${job_pid[job]} "
    done
    # A phase of one task leaves those of others alone.
    if ((whole)); then
        set -- "AGENT_WORKERS_RUN=$run_dir/" prefix
        find_unended
    else
        for job in $live_jobs; do
            set -- "AGENT_WORKERS_RUN=$run_dir/tasks/${x_name[job_task[job]]}" exact
            find_unended "${job_task[job]}"
        done
    fi
    # shellcheck disable=SC2086 # pids
    if [ -n "$live_jobs" ] && ! end_tree "$@" $spared; then
        put_error "could not end the processes $answer"
    fi
    forget_ends
    spared=' '
    {
        for job in $live_jobs; do
            kill -KILL "${job_pid[job]}"
            wait "${job_pid[job]}"
        done
    } 2>/dev/null
    take_waiting '[es][vt]*'
    for job in $live_jobs; do
        [ "${job_task[job]}" = - ] || task_interrupted "${job_task[job]}" interrupted
    done
    live_jobs=''
    over_how=interrupted
}

# Runs a job to its end; `over_how` says how it ended.
run_job() { # FUNCTION WORD...
    over_how=interrupted step_report=''
    [ -z "$interrupted" ] || return
    start_job - "$@"
    while [ -n "$live_jobs" ]; do turn; done
}

# --- Events ---------------------------------------------------------------------------------

# Appends an event to the log of the whole run; the number is put in here.
put_event() { # EVENT
    sequence=$((sequence + 1))
    { printf '{"schema": 1, "seq": %d, %s\n' "$sequence" "$1" >&4; } 2>/dev/null ||
        records_failed "$run_dir/events.jsonl"
}

# Answers an event but for its number.
make_event() { # MICROSECONDS WORD PHASE TASK|- NAME|- DATA
    local who=null name=null
    [ "$4" = - ] || who="\"$4\""
    [ "$5" = - ] || name="\"$5\""
    at "$1"
    answer="\"at\": \"$answer\", \"event\": \"$2\", \"task\": $who, \"phase\": \"$3\", \"name\": $name, \"data\": $6}"
}

# An event of the whole run.
run_event() { # WORD PHASE NAME|- DATA
    clock
    make_event "$now" "$1" "$2" - "$3" "$4"
    put_event "$answer"
}

# An event of a task, or of a step of the gate. Only for jobs.
job_event() { # WORD PHASE NAME|- DATA
    local data=$4
    clock
    if [ "$this_task" != - ]; then
        make_event "$now" "$1" "$2" "$this_task" "$3" "$data"
        sequence=$((sequence + 1))
        printf '{"schema": 1, "seq": %d, %s\n' "$sequence" "$answer" >&5
    fi
    # A report has to fit into one write to a pipe.
    ((${#data} < 3600)) || data='{}'
    tell "event|$this_job|$now|$1|$2|$3|$data"
}
this_task=-

# Sets `sequence` to the number of events in a log, and `torn` to the line that a killed writer
# left without an end.
count_events() { # LOG
    sequence=0 torn=''
    [ -s "$1" ] || return 0
    while IFS= read -r torn; do sequence=$((sequence + 1)); done <"$1"
}

# Opens the log of events of the whole run.
open_events() {
    local torn
    count_events "$run_dir/events.jsonl"
    exec 4>>"$run_dir/events.jsonl" || die 1 "cannot write $run_dir/events.jsonl"
    [ -z "$torn" ] || printf '\n' >&4
}

# --- Claims ---------------------------------------------------------------------------------

# Answers when a process was started, in words that no other process with this pid repeats.
process_start() { # PID
    local line
    answer=''
    if [ -r /proc/self/stat ]; then
        IFS= read -r -d '' line 2>/dev/null <"/proc/$1/stat" || [ -n "${line-}" ] || return 0
        # shellcheck disable=SC2086 # words
        set -- ${line##*") "}
        case ${1-Z} in Z | X) return ;; esac
        [ -n "$boot_id" ] || IFS= read -r boot_id </proc/sys/kernel/random/boot_id
        answer="$boot_id ${20}"
        return
    fi
    # shellcheck disable=SC2046 # words
    set -- $(ps -o lstart= -p "$1")
    answer=$*
}

boot_id=''

# Claims runs and branches for this process; fails when another has one of them, and `rival`
# says who. A claim is written, then all others are looked at; it holds when none is older or
# held. Claims of processes that are gone do not count. Once held it looks again: of two that did
# not see each other, both withdraw and begin anew.
claim() { # THING...
    local folder=$common/agent-workers/locks/runs token lines wanted until
    make_folder "$folder" || die 1 "cannot make $folder"
    process_start "$my_pid"
    printf -v lines 'claim %s\n' "$@"
    printf -v wanted '%s\n' '' "$@"
    lines="host $host${newline}pid $my_pid${newline}started $answer$newline$lines"
    clock
    until=$((now + 5000000))
    while :; do
        token=$my_pid-$RANDOM$RANDOM$RANDOM
        write_file "$folder/$token.claiming" "$lines" || die 1 "cannot write to $folder"
        my_claims+=("$folder/$token.claiming")
        while find_rival "$folder"; do
            rival="another runner ($rival_who) works on the $rival_thing"
            clock
            if [ "${rival_name%.held}" != "$rival_name" ] ||
                [[ $rival_name < "$token.claiming" ]] || ((now > until)); then
                rm -f -- "$folder/$token.claiming"
                return 1
            fi
            sleep 0.02
        done
        mv -f -- "$folder/$token.claiming" "$folder/$token.held" ||
            die 1 "cannot write to $folder"
        my_claims[${#my_claims[@]}-1]=$folder/$token.held
        if ! find_rival "$folder" || [ "${rival_name%.held}" = "$rival_name" ]; then
            return 0
        fi
        rm -f -- "$folder/$token.held"
        sleep "0.$((RANDOM % 20 + 1))"
    done
}
my_claims=()
my_pid=$$

# Finds a living claim on one of the `wanted` things, a held one if there is one. A claim that another
# process renames meanwhile is seen at its old name or at its new one: those come last.
find_rival() { # FOLDER
    local folder=$1 file line owner started shared pid found=0
    set +f
    set -- "$folder"/*.claiming
    set -- "$@" "$folder"/*.held
    set -f
    for file; do
        owner='' pid='' started='' shared=''
        case "$file ${my_claims[*]-} " in *"/*."* | "$file "*"$file "*) continue ;; esac
        [ -f "$file" ] || file=${file%.claiming}.held
        [ -f "$file" ] || continue
        while IFS= read -r line; do
            case $line in
            "host "*) owner=${line#host } ;;
            "pid "*) pid=${line#pid } ;;
            "started "*) started=${line#started } ;;
            "claim "*)
                case $wanted in
                *"$newline${line#claim }$newline"*) shared=${shared:-${line#claim }} ;;
                esac
                ;;
            esac
        done 2>/dev/null <"$file"
        [ -n "$shared" ] && [ -n "$pid" ] || continue
        if [ "$owner" = "$host" ]; then
            [ "$pid" != "$my_pid" ] || continue
            process_start "$pid"
            if [ "$answer" != "$started" ]; then
                rm -f -- "$file"
                continue
            fi
        fi
        # A held one counts most, then the one whose name comes first.
        if ((found)) && [ "${file%.held}" = "$file" ]; then continue; fi
        found=1 rival_name=${file##*/} rival_thing=$shared rival_who="process $pid"
        [ "$owner" = "$host" ] || rival_who+=" on $owner"
    done
    ((found))
}

must_claim() { # THING...
    claim "$@" ||
        die 11 "$rival" "wait for it to end; its claim is $common/agent-workers/locks/runs/$rival_name"
}

free_claims() {
    ((!${#my_claims[@]})) || rm -f -- "${my_claims[@]}"
    my_claims=()
}

# Adds a worktree under the repository's lock: that of the flock program, or where there is none a
# claim. Only for jobs.
add_under_lock() { # WORD...
    local folder=$common/agent-workers/locks until
    if command -v flock >/dev/null; then
        [ -e "$folder/repository.lock" ] || : >>"$folder/repository.lock"
        in_lock=(flock -w 120 "$folder/repository.lock")
        message=$(become_git "$root" worktree add --no-checkout "$@" 2>&1)
        set -- "$?"
        in_lock=()
        return "$1"
    fi
    my_pid=$(exec sh -c 'echo "$PPID"')
    clock
    until=$((now + 120000000))
    while ! claim "worktrees of this repository"; do
        clock
        if ((now >= until)); then
            message='another command kept the lock on the worktrees of this repository'
            return 1
        fi
        sleep 0.05
    done
    message=$(become_git "$root" worktree add --no-checkout "$@" 2>&1)
    set -- "$?"
    free_claims
    return "$1"
}

# --- Conditions and steps -------------------------------------------------------------------

# Decides a condition: `verdict` is 0 (holds), 1 (does not), 2 (could not be decided: `why`).
# Commands run as `place_folder` and `place_mark` say and write to `place_log`. Only for jobs.
decide() { # CONDITION
    local kind part
    # shellcheck disable=SC2086 # words without blanks
    set -- ${condition[$1]}
    kind=$1
    shift
    case $kind in
    command)
        command_argv "$1"
        run_program "$c_ms" "$place_mark" "$place_folder" /dev/null "$place_log" "${argv[@]}"
        verdict=2
        case $outcome in
        passed) verdict=0 ;;
        failed) ((code > 125)) || verdict=1 ;;
        esac
        if ((verdict == 2)); then
            case $outcome in
            timed-out) why='it timed out' ;;
            failed) why="exit code $code" ;;
            esac
            why="its condition could not be decided: $why"
        fi
        ;;
    all | any)
        verdict=0
        [ "$kind" = all ] || verdict=1
        for part; do
            decide "$part"
            ((verdict != 2)) || return 0
            [ "$kind$verdict" != all1 ] && [ "$kind$verdict" != any0 ] || return 0
        done
        ;;
    not)
        decide "$1"
        ((verdict == 2)) || verdict=$((1 - verdict))
        ;;
    backup)
        verdict=1
        case " $passed_backups " in *" $1 "*) verdict=0 ;; esac
        ;;
    *) plain_verdict "$kind" "$@" ;;
    esac
}

# Decides a condition on the environment or on a path.
plain_verdict() { # KIND WORD [TEXT]
    verdict=1
    if [ "$1" = path ]; then
        fill "$2"
        absolute "$answer" "$root"
        [ ! -e "$answer" ] || verdict=0
        return 0
    fi
    caller_value "$2"
    if (($# == 2)); then
        [ -z "$value" ] || verdict=0
    else
        fill_keeping_value "$3"
        [ "$value" != "$answer" ] || verdict=0
    fi
}

fill_keeping_value() { # TEXT
    local value
    fill "$1"
}

# Sets `value` to a variable as the caller exported it, empty when there is none.
caller_value() { # NAME
    local word
    value=''
    case $1 in
    DRY_RUN) value=$dry_run ;;
    RUN_ID) value=$given_run_id ;;
    LOG_ROOT) value=$log_root ;;
    MAX_PARALLEL) value=$given_max_parallel ;;
    ONLY) value=$only ;;
    RESUME) value=$resume ;;
    RERUN) value=$rerun ;;
    LC_ALL) value=$caller_locale ;;
    *[A-Z]*)
        case $'\n'$exported$'\n' in *$'\n'"$1"$'\n'*) value=${!1} ;; esac
        ;;
    *)
        for word in ${caller_words[@]+"${caller_words[@]}"}; do
            [ "${word%%=*}" != "$1" ] || value=${word#*=}
        done
        ;;
    esac
}

# Answers the record of a step. A reason, an exit code and a log may be empty.
step_json() { # NAME COMMAND_TEXT STATUS CODE SECONDS LOG REASON [ARTIFACT]
    local made
    json_string "$1"
    made="{$newline \"name\": $answer,"
    json_string "$2"
    made+="$newline \"command\": $answer,$newline \"status\": \"$3\",$newline \"exit_code\": ${4:-null},"
    json_optional "$6"
    made+="$newline \"seconds\": ${5:-0},$newline \"log\": $answer,"
    json_optional "$7"
    # shellcheck disable=SC2089 # a record
    made+="$newline \"reason\": $answer${8:+,$newline \"artifact\": $8}$newline}"
    answer=$made
}

# Runs one command of the plan. Sets s_status, s_code, s_seconds, s_log, s_reason, and for a
# backup s_artifact (size and digest). Only for jobs.
run_step() { # COMMAND PHASE MARK FOLDER LOG [DATE_OF_FILE]
    local id=$1 phase=$2 log=$5 stamp=${6-} began name when ms limit artifact check word
    take_command "$id"
    name=$c_name when=$c_when ms=$c_ms limit=$c_limit artifact=$c_artifact check=$c_check
    place_mark=$3 place_folder=$4 place_log=$log
    s_status=running s_code='' s_log='' s_reason='' s_artifact=''
    clock
    began=$now
    job_event started "$phase" "$name" '{}'
    verdict=0
    [ "$when" = - ] || decide "$when"
    case $verdict in
    1) s_status=skipped s_reason='its condition does not hold' ;;
    2) s_status=failed s_reason=$why ;;
    0)
        s_log=${log#"$run_dir/"}
        command_argv "$id"
        run_program "$ms" "$place_mark" "$place_folder" /dev/null "$log" "${argv[@]}"
        s_status=$outcome s_code=$code
        case $outcome in
        failed) s_reason="exit code $code" ;;
        timed-out) s_reason="timed out after $limit s" ;;
        lost) s_status=failed s_reason=$why ;;
        passed)
            [ "$artifact" = - ] || prove_artifact "$artifact" "$stamp"
            [ "$check" = - ] || [ "$s_status" != passed ] || prove_check "$check" "${log%.log}-check.log"
            ;;
        esac
        ;;
    esac
    clock
    seconds_between "$began" "$now"
    s_seconds=$answer
    word=exited
    case $s_status in timed-out) word=timed_out ;; skipped) word=cancelled ;; esac
    job_event "$word" "$phase" "$name" \
        "{\"status\": \"$s_status\", \"exit_code\": ${s_code:-null}, \"seconds\": $s_seconds}"
}

# Demands a backup's artifact.
prove_artifact() { # TEXT DATE_OF_FILE
    local path size
    fill "$1"
    rooted "$answer"
    path=$answer
    s_status=failed
    if [ ! -e "$path" ]; then
        s_reason="its artifact $path is missing: No such file or directory"
    elif [ ! -f "$path" ]; then
        s_reason="its artifact $path is not a file"
    elif [ ! -s "$path" ]; then
        s_reason="its artifact $path is empty"
    elif [ ! -e "$2" ] || [ "$2" -nt "$path" ]; then
        s_reason="its artifact $path is older than the start of the run"
    elif ! hash_files "$path" || ! size=$(wc -c <"$path"); then
        s_reason="its artifact $path cannot be read"
    else
        s_artifact="$((size)) ${digests%%"$newline"*}"
        s_status=passed
    fi
}

# Sets `digests` to the SHA-256 of files, one a line.
hash_files() { # PATH...
    local line out
    if type -P sha256sum >/dev/null; then
        out=$(sha256sum -- "$@") || return 1
    else
        out=$(shasum -a 256 -- "$@") || return 1
    fi
    digests=''
    local IFS=$newline
    for line in $out; do
        line=${line#"$backslash"}
        digests+="${line%% *}$newline"
    done
}

prove_check() { # COMMAND LOG
    command_argv "$1"
    run_program "$c_ms" "$place_mark" "$place_folder" /dev/null "$2" "${argv[@]}"
    [ "$outcome" != passed ] || return 0
    s_status=failed
    case $outcome in
    timed-out) s_reason='its check failed: timed out' ;;
    failed) s_reason="its check failed: exit code $code" ;;
    *) s_reason="its check failed: $why" ;;
    esac
}

# Marks in a log that it was begun again.
mark_log() { # LOG
    [ -e "$1" ] || return 0
    stamp
    { printf -- '--- %s again\n' "$answer" >>"$1"; } 2>/dev/null
}

# The job of a step of the gate or after the tasks.
step_job() { # COMMAND PHASE FOLDER_NAME
    take_command "$1"
    local log=$run_dir/$3/$c_name.log
    mark_log "$log"
    run_step "$1" "$2" "$run_dir/$3" "$root" "$log" "$run_dir/.gate"
    tell "step|$this_job|$s_status|$s_code|$s_seconds|$s_log|$s_artifact|${s_reason:0:3000}"
    tell "over|$this_job|done"
}

# Runs commands in order, and keeps the records of their steps in h_json, h_name, h_status; those
# of a list whose step has passed already stay. Fails at the first that does not pass, with `why`.
run_list() { # LIST PHASE FOLDER_NAME SAVE
    local place=0 id name status code seconds log artifact reason path clear
    listed "$1"
    for id in $answer; do
        if [ "${h_status[place]}" != passed ]; then
            command_clear "$id"
            clear=$answer name=$c_name
            make_folder "$run_dir/$3" || records_failed "$run_dir/$3"
            say "$3 $name" started
            step_json "$name" "$clear" running '' 0 '' ''
            h_json[place]=$answer
            h_status[place]=running
            "$4"
            run_job step_job "$id" "$2" "$3"
            if [ "$over_how" = interrupted ]; then
                step_report='interrupted|||||interrupted'
            elif [ -z "$step_report" ]; then
                step_report='failed|||||its process was killed'
            fi
            local IFS='|'
            # shellcheck disable=SC2086 # fields
            set -- "$1" "$2" "$3" "$4" $step_report
            status=$5 code=${6-} seconds=${7-} log=${8-} artifact=${9-} reason="${*:10}"
            IFS=$' \t\n'
            if [ -n "$artifact" ]; then
                take_command "$id"
                fill "$c_artifact"
                rooted "$answer"
                path=$answer
                json_string "$path"
                artifact="{$newline  \"path\": $answer,$newline  \"size\": ${artifact% *},$newline  \"sha256\": \"${artifact#* }\"$newline }"
            elif [ "$2" = backup ]; then
                take_command "$id"
                [ "$c_artifact" = - ] || artifact=null
            fi
            step_json "$name" "$clear" "$status" "$code" "$seconds" "$log" "$reason" "$artifact"
            h_json[place]=$answer
            h_status[place]=$status
            "$4"
            say "$3 $name" "$status" "$reason"
            case $status in
            passed | skipped) ;;
            *)
                why="$2 $name: ${reason:-$status}" hint="look at $run_dir/$3/$name.log"
                return 1
                ;;
            esac
        fi
        place=$((place + 1))
    done
}

# Fills h_json, h_name and h_status with steps that have not run.
new_list() { # LIST
    local id
    h_json=() h_name=() h_status=()
    listed "$1"
    for id in $answer; do
        command_clear "$id"
        h_name+=("$c_name")
        step_json "$c_name" "$answer" not-started '' 0 '' ''
        h_json+=("$answer")
        h_status+=(not-started)
    done
}

# Fills them with the steps of a list; those that passed before and are not lost stay.
kept_list() { # LIST LOST OLD_STEP...
    local old place lost=" $2"
    new_list "$1"
    shift 2
    for old; do
        json_get "$old" status
        [ "$answer" = passed ] || continue
        json_get "$old" name
        case $lost in *" $answer "*) continue ;; esac
        for ((place = 0; place < ${#h_name[@]}; place++)); do
            [ "${h_name[place]}" != "$answer" ] || { h_json[place]=$old && h_status[place]=passed; }
        done
    done
}

# Fills h_json, h_name and h_status from a list of steps in a record.
read_list() { # RECORD KEY
    local line one='' IFS=$newline
    h_json=() h_name=() h_status=()
    json_raw "$1" "$2" || return 0
    for line in $answer; do
        case $line in
        '[]' | '[' | ' ]') ;;
        '  {') one='{' ;;
        '  }' | '  },')
            one+="$newline}"
            h_json+=("$one")
            json_get "$one" name
            h_name+=("$answer")
            json_get "$one" status
            h_status+=("$answer")
            ;;
        *) one+=$newline${line#"  "} ;;
        esac
    done
}

# Turns a step that is said to run into `interrupted`.
settle_list() {
    local place
    for ((place = 0; place < ${#h_json[@]}; place++)); do
        [ "${h_status[place]}" = running ] || continue
        h_status[place]=interrupted
        json_set "${h_json[place]}" status '"interrupted"'
        json_set "$answer" reason '"the runner was killed"'
        h_json[place]=$answer
    done
}

# --- The run --------------------------------------------------------------------------------

# Takes the runner's own settings out of the environment.
read_settings() {
    local place name
    dry_run=${DRY_RUN-} given_run_id=${RUN_ID-} log_root=${LOG_ROOT-} only=${ONLY-}
    given_max_parallel=${MAX_PARALLEL-} resume=${RESUME-} rerun=${RERUN-}
    unset DRY_RUN RUN_ID LOG_ROOT MAX_PARALLEL ONLY RESUME RERUN
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_OBJECT_DIRECTORY
    unset GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE GIT_PREFIX GIT_QUARANTINE_PATH
    unset GIT_INTERNAL_SUPER_PREFIX GIT_SHALLOW_FILE GIT_GRAFT_FILE TMUX TMUX_PANE CDPATH
    unset GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS
    exported=$(compgen -e)
    case $dry_run in '' | 0) is_dry=0 ;; *) is_dry=1 ;; esac
    case $resume in '' | 0) is_resumed=0 ;; *) is_resumed=1 ;; esac
    max_parallel=$plan_max_parallel
    part_lines=$plan_parts
    between_parts="\",$newline  \""
    case $given_max_parallel in
    '') ;;
    [!1-9]* | *[!0-9]* | ?????*)
        die 2 "MAX_PARALLEL is '$given_max_parallel'" "give a number from 1 to 9999"
        ;;
    *) max_parallel=$given_max_parallel ;;
    esac
    ((!plan_one_at_once || max_parallel == 1)) || die 2 "MAX_PARALLEL is '$max_parallel'" \
        "give 1: the mapping of the plan's agent says that two of them disturb each other"
    plan_value=(${variable_value[@]+"${variable_value[@]}"})
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        name=PLAN_${variable_name[place]}
        # A name without capitals in it is still in the environment: PLAN_ has some.
        [ -z "${!name+set}" ] || variable_value[place]=${!name}
    done
}

# Finds the repository and the run's folder.
locate() {
    local repo out
    run_id='' run_dir='' root=''
    use_no_task
    fill "$plan_repo"
    absolute "$answer" "$PWD"
    repo=$answer
    type -P git >/dev/null || die 4 "git is not on PATH" "install git 2.39 or newer"
    set -- -C "$repo" rev-parse --path-format=absolute --show-toplevel --git-common-dir
    if ! out=$(git_plain "$@" 2>/dev/null); then
        die 4 "'$repo' is no git repository: $(git_plain "$@" 2>&1 >/dev/null)" \
            "run this where the plan's \`repo\` counts from"
    fi
    case ${out#*"$newline"}$log_root in *"$newline"*)
        die 2 "a path with a newline in it is not supported" "rename the folder"
        ;;
    esac
    root=${out%"$newline"*} common=${out##*"$newline"}
    # Where `git worktree add` does more than `lay_out`, it is left to it.
    plain_layout=1
    read_file "$common/config" || plain_layout=0
    shopt -s nocasematch
    case $answer in
    *'[extensions'* | *'[include'* | *sparsecheckout* | *sharedrepository*) plain_layout=0 ;;
    esac
    shopt -u nocasematch
    case $given_run_id in
    '') ;;
    [!A-Za-z0-9]* | *[!A-Za-z0-9._-]* | *..*)
        die 2 "RUN_ID is '$given_run_id'" "use up to 100 letters, digits, '.', '_' and '-'"
        ;;
    esac
    ((${#given_run_id} <= 100)) ||
        die 2 "RUN_ID is '$given_run_id'" "use up to 100 letters, digits, '.', '_' and '-'"
    if [ -n "$given_run_id" ]; then
        run_id=$given_run_id
    elif ((is_dry)); then
        run_id="$plan_run_name-<time>"
    else
        stamp
        out=${answer//[:-]/}
        run_id=$plan_run_name-${out%.*}Z
    fi
    runs=$root/.worker-runs
    if [ -n "$log_root" ]; then
        absolute "$log_root" "$PWD"
        runs=$answer
    fi
    run_dir=$runs/$run_id
    fill "$plan_worktree_root"
    worktree_root=$root.worktrees
    if [ -n "$answer" ]; then
        absolute "$answer" "$root"
        worktree_root=$answer
    fi
    case $worktree_root in *"$newline"*)
        die 2 "a path with a newline in it is not supported" "set worktree_root"
        ;;
    esac
}

# Gives programs the values of this run.
export_values() {
    local place
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        export "PLAN_${variable_name[place]}=${variable_value[place]}"
    done
    export RUN_ID=$run_id RUN_DIR=$run_dir REPO_ROOT=$root
}

# Answers the commit that a name stands for.
commit_of() { # NAME
    answer=$(git_plain -C "$root" rev-parse --verify --quiet --end-of-options "$1^{commit}" 2>/dev/null)
}

# Makes the tasks of the run from those of the plan, one for each item: `items_of` holds what the
# gate found, a list of lines by the task's place. Fails with `why`.
expand() {
    local row lines position other members number after before behind
    heed_pinned
    x_row=() x_item=() x_has_item=() x_slug=() x_name=() x_branch=() x_after=() x_marked=()
    group=() is_dynamic=0
    if [ -n "$plan_rows" ]; then
        # shellcheck disable=SC2206 # words
        x_name=($plan_names) x_branch=($plan_branches)
        x_row=("${!x_name[@]}") group=("${!x_name[@]}")
        x_item=("${x_name[@]/*/}") x_slug=("${x_item[@]}") x_has_item=("${x_name[@]/*/0}")
    fi
    for ((row = ${#x_row[@]}; row < ${#task_name[@]}; row++)); do
        if [ "${task_each[row]}" = - ]; then
            add_task "$row" 0 '' 0
            continue
        fi
        position=0
        case ${task_each[row]} in
        items:*)
            listed "${task_each[row]#items:}"
            for number in $answer; do
                position=$((position + 1))
                add_task "$row" 1 "${text[number]}" "$position"
            done
            continue
            ;;
        esac
        is_dynamic=1
        if ((unknown_as_one)) && [ -z "${items_known[row]-}" ]; then
            add_task "$row" 0 '' 0
            continue
        fi
        lines=${items_of[row]-}
        while [ -n "$lines" ]; do
            position=$((position + 1))
            cut "$lines" "$newline"
            lines=$behind
            add_task "$row" 1 "$before" "$position"
        done
    done
    # All at once: a plan may have many tasks.
    x_worktree=(${x_name[@]+"${x_name[@]/#/$worktree_root/}"})
    x_chosen=(${x_name[@]+"${x_name[@]/*/1}"}) x_free=(${x_name[@]+"${x_name[@]/*/0}"})
    x_base=(${x_name[@]+"${x_name[@]/*/}"}) x_reason=(${x_base[@]+"${x_base[@]}"})
    x_json=(${x_base[@]+"${x_base[@]}"}) x_status=(${x_name[@]+"${x_name[@]/*/not-started}"})
    x_agent_started=(${x_free[@]+"${x_free[@]}"}) x_files=(${x_free[@]+"${x_free[@]}"})
    x_seconds=(${x_free[@]+"${x_free[@]}"}) x_left=(${x_free[@]+"${x_free[@]}"}) x_began=()
    some_blank=1
    x_after=(${x_base[@]+"${x_base[@]}"})
    are_none ${task_depends[@]+"${task_depends[@]}"} || for ((number = 0; number < ${#x_row[@]}; number++)); do
        row=${x_row[number]} after=''
        [ "${task_depends[row]}" != - ] || continue
        for row in ${task_depends[row]//,/ }; do
            members=${group[row]-}
            if ((x_has_item[number])); then
                for other in $members; do
                    if ((x_has_item[other])) && [ "${x_item[other]}" = "${x_item[number]}" ]; then
                        members=$other
                        break
                    fi
                done
            fi
            after+="${after:+ }$members"
        done
        x_after[number]=$after
    done
    put_in_order
    check_names
}
unknown_as_one=0
items_of=() items_known=()

# Lets tasks that own a path both wait for one another, as the plan's order says.
put_in_order() {
    local row other word before kind number last
    x_behind=(${x_base[@]+"${x_base[@]}"})
    ! are_none ${task_order[@]+"${task_order[@]}"} || return 0
    for ((row = 0; row < ${#task_order[@]}; row++)); do
        [ "${task_order[row]}" != - ] || continue
        for word in ${task_order[row]//,/ }; do
            before=${word%:*} kind=${word#*:} last=''
            if [ "$kind" = plain ]; then
                if is_plain "$row" && is_plain "$before"; then kind=item; fi
            fi
            for number in ${group[row]-}; do
                if [ "$before" = "$row" ]; then
                    [ "$kind" = item ] || x_behind[number]+=" $last"
                    last=$number
                    continue
                fi
                for other in ${group[before]-}; do
                    if [ "$kind" = item ] && ((x_has_item[number] && x_has_item[other])); then
                        [ "${x_item[number]}" = "${x_item[other]}" ] || continue
                    fi
                    x_behind[number]+=" $other"
                done
            done
        done
    done
}

# Whether the items of a task are words that no pattern reads as more, none of them twice.
is_plain() { # ROW
    local number lines=''
    for number in ${group[$1]-}; do
        ((x_has_item[number])) || continue
        case ${x_item[number]} in . | .. | *[][/*?\\!]*) return 1 ;; esac
        lines+=${x_item[number]}$newline
    done
    [ -z "$(printf '%s' "$lines" | LC_ALL=C sort | uniq -d)" ]
}

# Runs one task at a time where variables have values that the plan's order does not count on.
heed_pinned() {
    local place
    ((max_parallel > 1)) && ((whole || is_dry)) || return 0
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        case " $plan_pinned " in *" ${variable_name[place]} "*) ;; *) continue ;; esac
        [ "${variable_value[place]}" != "${plan_value[place]}" ] || continue
        max_parallel=1
        printf "note: PLAN_%s is another than the plan's, and \`owns\` depends on it: one task at a time\n" \
            "${variable_name[place]}" >&2
        return
    done
}

# Whether all words are the first one.
are_all() { # WORD WORD...
    local one=$1
    shift
    [ "$*" = "${*/*/$one}" ]
}

# Whether all words are empty or "-".
are_none() { # WORD...
    case $* in *[!\ -]*) return 1 ;; esac
}

add_task() { # ROW HAS_ITEM ITEM POSITION
    local number=${#x_row[@]}
    group[$1]=${group[$1]+${group[$1]} }$number
    x_marked+=("$number")
    item=$3 item_known=$2 item_slug=''
    if (($2)); then
        slug "$3" "$4"
        item_slug=$answer
    fi
    x_row[number]=$1 x_has_item[number]=$2 x_item[number]=$3 x_slug[number]=$item_slug
    fill "${task_name[$1]}"
    x_name[number]=$answer
    fill "${task_branch[$1]}"
    x_branch[number]=$answer
}

forget_record() { # NUMBER
    x_status[$1]=not-started x_reason[$1]='' x_json[$1]='' x_agent_started[$1]=0 x_files[$1]=0
    x_seconds[$1]=0 x_left[$1]=0 some_blank=1
}

# Demands names and branches that are valid and differ; those without a placeholder were checked
# when the plan was rendered. Fails with `why`.
check_names() {
    local number twice
    ((${#x_marked[@]})) || return 0
    for number in "${x_marked[@]}"; do
        # What a list that is not known yet will come to has no name yet.
        if ((unknown_as_one && !x_has_item[number])) && [ "${task_each[x_row[number]]}" != - ]; then
            continue
        fi
        if ! is_name "${x_name[number]}"; then
            why="'${x_name[number]}' is no name for a task"
            return 1
        fi
        if ! is_branch "${x_branch[number]}"; then
            why="'${x_branch[number]}' is no name for a branch (task ${x_name[number]})"
            return 1
        fi
    done
    find_twice "${x_name[@]}"
    [ -z "$answer" ] || { why="two tasks have the name '$answer'" && return 1; }
    find_twice "${x_branch[@]}"
    [ -z "$answer" ] || { why="two tasks have the branch '$answer'" && return 1; }
    twice=$(printf '%s\n' "${x_branch[@]}" | tr '[:upper:]' '[:lower:]' |
        awk '{ seen[$0]; name[NR] = $0 }
            END { for (n = 1; n <= NR; n++) { p = name[n]
                while (sub("/[^/]*$", "", p)) if (p in seen) { print p " and " name[n]; exit } } }')
    [ -z "$twice" ] || { why="there cannot be both branches $twice" && return 1; }
}

# Answers the first of the words that come twice, in small letters.
find_twice() { # WORD...
    answer=$(printf '%s\n' "$@" | tr '[:upper:]' '[:lower:]' | sort | uniq -d)
    answer=${answer%%"$newline"*}
}

# Whether a name stands for a task: its own, or the plan's for all of its expansions.
is_named() { # NUMBER NAME
    local name row=${x_row[$1]} added='-{item}'
    [ "${x_name[$1]}" != "$2" ] || return 0
    name=${text[task_name[row]]}
    case $name in
    *\{item\}*) [ "$name" = "$2" ] || [ "${name%"$added"}" = "$2" ] ;;
    *) return 1 ;;
    esac
}

# Marks the tasks that ONLY names; ends the runner for a name that ONLY or RERUN should not have.
choose() { # FINAL
    local number word setting
    split_words "$only"
    only_words=(${words[@]+"${words[@]}"})
    split_words "$rerun"
    rerun_words=(${words[@]+"${words[@]}"})
    for setting in ONLY RERUN; do
        words=(${only_words[@]+"${only_words[@]}"})
        [ "$setting" = ONLY ] || words=(${rerun_words[@]+"${rerun_words[@]}"})
        for word in ${words[@]+"${words[@]}"}; do
            for ((number = 0; number < ${#x_row[@]}; number++)); do
                ! is_named "$number" "$word" || break
            done
            ((number < ${#x_row[@]} || (is_dynamic && !$1))) ||
                die 2 "$setting names '$word', which is no task of this plan" "$known_names"
        done
    done
    ((${#only_words[@]})) || return 0
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        is_in "$number" "${only_words[@]}" || x_chosen[number]=0
    done
}

# Whether one of the names stands for a task.
is_in() { # NUMBER NAME...
    local number=$1 word
    shift
    for word; do
        ! is_named "$number" "$word" || return 0
    done
    return 1
}

# Sets `words` to the members of a list with commas.
split_words() { # LIST
    local word IFS=,
    words=()
    for word in $1; do
        while [ "$word" != "${word# }" ]; do word=${word# }; done
        while [ "$word" != "${word% }" ]; do word=${word% }; done
        [ -z "$word" ] || words+=("$word")
    done
}

# Sets `known_names` to a hint.
list_names() {
    local number
    known_names='known: '
    for ((number = 0; number < ${#x_row[@]} && number < 20; number++)); do
        known_names+="${x_name[number]}, "
    done
    known_names=${known_names%, }
}

# Demands that what a task's agent needs stands in its environment; `given` are the names that the
# plan gives it, with a "=" where there is a value.
require_needed() { # NUMBER
    local name from
    listed "$a_needs"
    for name in $answer; do
        case $given in
        *" $name= "*) continue ;;
        *" $name "*) ;;
        *)
            for from in ${caller_words[@]+"${caller_words[@]}"}; do
                case $from in "$name="?*) continue 2 ;; esac
            done
            case $newline$exported$newline in
            *"$newline$name$newline"*) [ -z "${!name-}" ] || continue ;;
            esac
            ;;
        esac
        die 4 "the agent '${argv[0]}' (task ${x_name[$1]}) needs $name in its environment" \
            "export $name"
    done
}

# Demands that the agents' programs are there.
require_agents() {
    local number row word path given found=()
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        ((${#found[@]} < ${#agent[@]})) || break
        row=${x_row[number]}
        if [ -n "${found[task_agent[row]]-}" ] || ((!x_chosen[number])); then continue; fi
        use_task "$number"
        verdict=2
        [ "$t_when" = - ] || foresee "$t_when"
        ((verdict != 1)) || continue
        agent_argv "$number" '' ''
        path=$PATH given=' '
        listed "$a_env"
        for word in $answer; do
            fill "${word#*:}"
            [ "${word%%:*}" != PATH ] || path=$answer
            given+="${word%%:*}${answer:+=} "
        done
        require_needed "$number"
        PATH=$path is_program / "${argv[0]}" ||
            die 4 "the agent '${argv[0]}' (task ${x_name[number]}) is not there" \
                "install it, or put it on PATH"
        # Another item may stand for another program.
        case "${mark[a_cli]-} $a_env" in *item* | *PATH:*) ;; *) found[t_agent]=1 ;; esac
    done
}

# Demands of ONLY that what its tasks depend on is well in this run; fails with `why` and `hint`.
check_dependencies() {
    local number other
    ((${#only_words[@]})) || return 0
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        ((x_chosen[number])) || continue
        for other in ${x_after[number]}; do
            if ((!x_chosen[other])) && ! is_well "$other"; then
                why="${x_name[number]} depends on ${x_name[other]}, which is ${x_status[other]}"
                hint="name ${x_name[other]} in ONLY as well"
                return 1
            fi
        done
    done
}

# Whether those that depend on a task may run.
is_well() { # NUMBER
    case ${x_status[$1]} in
    passed) return 0 ;;
    skipped) [ "${x_reason[$1]}" != "left out by ONLY" ] ;;
    no-change)
        take_row "${x_row[$1]}"
        take_agent "$t_agent"
        ((a_allow_no_change))
        ;;
    *) return 1 ;;
    esac
}

# Answers what a task waits for in vain, empty when there is nothing.
find_unwell() { # NUMBER
    local other
    answer=''
    for other in ${x_after[$1]}; do
        is_well "$other" && continue
        answer="it depends on ${x_name[other]}, which is ${x_status[other]}"
        return
    done
}

is_well_or_left_out() { # NUMBER
    [ "${x_status[$1]}" = skipped ] || is_well "$1"
}

# --- Records of the run ---------------------------------------------------------------------

# Notes that a record cannot be written: the run has to end.
records_failed() { # PATH
    [ -z "$trouble" ] || return 0
    trouble="cannot keep records: $1 cannot be written${write_error:+: $write_error}"
    if ((in_tasks)); then stop_jobs; fi
}
trouble='' in_tasks=0

save_gate() {
    save_gate_alone
    save_manifest
}

save_gate_alone() {
    local made sums IFS=$newline
    # shellcheck disable=SC2206 # lines
    sums=($part_lines)
    IFS=$' \t\n'
    json_optional "$gate_reason"
    made="{$newline \"schema\": 1,$newline \"status\": \"$gate_status\",$newline \"reason\": $answer,"
    made+="$newline \"started_at\": \"$gate_started\","
    json_optional "$gate_ended"
    made+="$newline \"ended_at\": $answer,$newline \"plan_sha256\": \"$plan_sha256\","
    printf -v answer ",$newline  \"%s\"" ${sums[@]+"${sums[@]}"}
    made+="$newline \"parts\": [${answer#,}$newline ],"
    json_list 1 ${preflight_json[@]+"${preflight_json[@]}"}
    made+="$newline \"preflight\": $answer,"
    json_list 1 ${backup_json[@]+"${backup_json[@]}"}
    made+="$newline \"backups\": $answer$newline}$newline"
    write_file "$run_dir/gate.json" "$made" || records_failed "$run_dir/gate.json"
}

save_preflight() {
    preflight_json=(${h_json[@]+"${h_json[@]}"})
    save_gate
}

save_backups() {
    backup_json=(${h_json[@]+"${h_json[@]}"})
    save_gate
}

save_postflight() {
    postflight_json=(${h_json[@]+"${h_json[@]}"})
    save_manifest
}

# Writes the manifest unless that was done a moment ago: with many short tasks it costs more than they
# do. Each task has its own record as well, from which a run goes on.
save_manifest_soon() {
    clock
    if ((now - saved_at >= 250000 || now < saved_at)); then
        save_manifest
    elif [ "$tick" = 1 ]; then
        tick=0.25
    fi
}
saved_at=0

save_manifest() {
    local made number rows=''
    ((whole)) || return 0
    dirty=0
    clock
    saved_at=$now
    json_string "$run_id"
    made="{$newline \"schema\": 1,$newline \"run_id\": $answer,"
    json_string "$plan_run_name"
    made+="$newline \"run_name\": $answer,$newline \"status\": \"$run_status\","
    json_string "$root"
    made+="$newline \"exit_code\": ${run_code:-null},$newline \"repo\": $answer,"
    json_optional "$base_commit"
    made+="$newline \"base\": $answer,"
    json_optional "$integration"
    made+="$newline \"integration_branch\": $answer,$newline \"started_at\": \"$run_started\","
    json_optional "$run_ended"
    made+="$newline \"ended_at\": $answer,"
    json_list 1 ${preflight_json[@]+"${preflight_json[@]}"}
    made+="$newline \"preflight\": $answer,"
    json_list 1 ${backup_json[@]+"${backup_json[@]}"}
    made+="$newline \"backups\": $answer,"
    if ((${#x_row[@]})); then
        ((!some_blank)) || fill_blank
        local IFS=''
        rows="${blank_rows:-${x_json[*]}}"
        IFS=$' \t\n'
        rows=${rows#,}
    fi
    made+="$newline \"tasks\": [${rows:+$rows$newline }],"
    json_list 1 ${postflight_json[@]+"${postflight_json[@]}"}
    made+="$newline \"postflight\": $answer$newline}$newline"
    write_file "$run_dir/manifest.json" "$made" || records_failed "$run_dir/manifest.json"
}

# Makes what the manifest says of tasks that have no record of their own, of all at once. Before the
# first one has a record it is kept as one text, `blank_rows`.
fill_blank() {
    local number place=0 blank=() words=() branches worktrees reason base rows IFS=''
    some_blank=0 blank_rows=''
    blank_record
    rows="${x_json[*]}${x_reason[*]}"
    # Between words: it may stand in none of them.
    IFS=$'\036'
    if [ -n "$plan_rows" ] && [ -z "$rows" ] && are_all not-started "${x_status[@]}" &&
        are_all "${x_base[0]}" "${x_base[@]}"; then
        folder_format
        r_name='%s%.0s' r_branch='"%s"' r_worktree="$answer%.0s" r_base=${x_base[0]}
        make_record
        as_row "$answer"
        IFS=': '
        # shellcheck disable=SC2059,SC2086 # the format is a record, words are split
        printf -v blank_rows "$answer" $plan_rows
        return
    fi
    json_strings "${x_branch[@]}"
    branches=("${quoted[@]}")
    json_strings "${x_worktree[@]}"
    worktrees=("${quoted[@]}")
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ -z "${x_json[number]}" ] || continue
        reason=null base=null
        [ -z "${x_reason[number]}" ] || { json_string "${x_reason[number]}" && reason=$answer; }
        [ -z "${x_base[number]}" ] || base=\"${x_base[number]}\"
        blank+=("$number")
        words+=("${x_name[number]}$IFS${x_status[number]}$IFS$reason$IFS${branches[number]}$IFS${worktrees[number]}$IFS$base")
    done
    ((${#blank[@]})) || return 0
    r_name=%s r_status=%s r_reason=%s r_branch=%s r_worktree=%s r_base=%s
    make_record
    answer=${answer/'"reason": "%s"'/'"reason": %s'}
    as_row "${answer/'"base": "%s"'/'"base": %s'}"
    # shellcheck disable=SC2048,SC2059,SC2086 # the format is a record, words are split
    printf -v rows "$answer$IFS" ${words[*]}
    for base in $rows; do
        x_json[blank[place]]=$base
        place=$((place + 1))
    done
}
blank_rows=''

# Answers what `printf` makes the JSON string of a task's worktree of, when it is given the last part.
folder_format() {
    json_string "$worktree_root/"
    answer=${answer//"$backslash"/$backslash$backslash}
    answer=${answer//%/%%}
    answer=${answer%\"}%s\"
}

# Sets r_status and so on to the record of a task that was not started.
blank_record() {
    r_status=not-started r_reason='' r_head='' r_code='' r_agent_started=false r_log='' r_started=''
    r_ended='' r_files=() r_outside=() r_left=() r_setup=() r_verify=() r_seconds=0
}

start_record() { # NUMBER
    blank_record
    json_string "${x_branch[$1]}"
    r_name=${x_name[$1]} r_branch=$answer r_base=${x_base[$1]}
    json_string "${x_worktree[$1]}"
    r_worktree=$answer
}

# Answers a task's record as JSON.
make_record() {
    local made base=${r_base:+\"$r_base\"} head=${r_head:+\"$r_head\"}
    local started=${r_started:+\"$r_started\"} ended=${r_ended:+\"$r_ended\"}
    json_optional "$r_reason"
    made="{$newline \"schema\": 1,$newline \"name\": \"$r_name\",$newline \"status\": \"$r_status\",$newline \"reason\": $answer,$newline \"branch\": $r_branch,$newline \"worktree\": $r_worktree,$newline \"base\": ${base:-null},$newline \"head\": ${head:-null},$newline \"exit_code\": ${r_code:-null},$newline \"agent_started\": $r_agent_started,$newline"
    json_list 1 ${r_files[@]+"${r_files[@]}"}
    made+=" \"files_changed\": $answer,$newline"
    json_list 1 ${r_outside[@]+"${r_outside[@]}"}
    made+=" \"out_of_scope\": $answer,$newline"
    json_list 1 ${r_left[@]+"${r_left[@]}"}
    made+=" \"uncommitted\": $answer,$newline"
    json_list 1 ${r_setup[@]+"${r_setup[@]}"}
    made+=" \"setup\": $answer,$newline"
    json_list 1 ${r_verify[@]+"${r_verify[@]}"}
    made+=" \"verify\": $answer,$newline"
    json_optional "$r_log"
    answer="$made \"log\": $answer,$newline \"started_at\": ${started:-null},$newline \"ended_at\": ${ended:-null},$newline \"seconds\": $r_seconds$newline}"
}

# Answers a task's record as the manifest holds it behind a comma.
as_row() { # RECORD
    local made=${1/"$newline \"schema\": 1,"/}
    answer=,$newline"  "${made//"$newline"/$newline  }
}

# Keeps a task's record and what else is told of it.
take_result() { # NUMBER RECORD
    local rest status reason seconds started
    as_row "$2"
    x_json[$1]=$answer
    get_all "$2" status status reason reason seconds seconds agent_started started
    [ -z "$blank_rows" ] || some_blank=1
    x_status[$1]=$status x_reason[$1]=$reason x_seconds[$1]=$seconds
    x_agent_started[$1]=0 x_left[$1]=1
    [ "$started" != true ] || x_agent_started[$1]=1
    json_raw "$2" uncommitted
    [ "$answer" != '[]' ] || x_left[$1]=0
    json_raw "$2" files_changed
    rest=${answer//[!"$newline"]/}
    x_files[$1]=0
    ((${#rest} == 0)) || x_files[$1]=$((${#rest} - 1))
}

# Takes up the record that a task has written; fails when there is none. One that was begun and has
# not written any yet is running.
read_result() { # NUMBER
    local folder=$run_dir/tasks/${x_name[$1]}
    if ! read_record "$folder/result.json"; then
        [ -e "$folder/.job" ] || return 1
        begun_record "$1"
    fi
    take_result "$1" "$answer"
}

# Puts into the manifest's row of a task that its agent was started.
agent_has_started() { # NUMBER LOG_JSON
    local row=${x_json[$1]}
    x_agent_started[$1]=1
    row=${row/'"agent_started": false'/'"agent_started": true'}
    x_json[$1]=${row/'"log": null,'/"\"log\": $2,"}
}

# Answers the record of a task that was begun and has not written any.
begun_record() { # NUMBER
    local folder=$run_dir/tasks/${x_name[$1]}
    start_record "$1"
    r_status=running
    { IFS= read -r r_started <"$folder/.job"; } 2>/dev/null
    if [ -e "$folder/.agent-started" ] || ((${x_agent_started[$1]-0})); then
        use_task "$1"
        r_agent_started=true
        new_list "$t_verify"
        r_verify=(${h_json[@]+"${h_json[@]}"})
        fill "$a_log_name"
        r_log=tasks/${x_name[$1]}/$answer
    fi
    make_record
}

# Writes a task's record that the coordinator has changed.
put_result() { # NUMBER RECORD
    local folder=$run_dir/tasks/${x_name[$1]}
    make_folder "$folder"
    write_file "$folder/result.json" "$2$newline" || records_failed "$folder/result.json"
    take_result "$1" "$2"
}

# Adds to the `record` of a task that was interrupted what its agent has changed until then.
add_changes() { # NUMBER
    local key stamp='' before behind was_there
    json_get "$record" agent_started
    cut "$record" '"files_changed": []' && [ "$answer" = true ] && [ -d "${x_worktree[$1]}" ] || return 0
    use_task "$1"
    this_task=${x_name[$1]} r_head='' r_files=() r_left=() r_outside=()
    if after_setup "$1" "$run_dir/tasks/$this_task"; then collect "$1" "$stamp"; fi
    this_task=-
    json_optional "$r_head"
    json_set "$record" head "$answer"
    record=$answer
    for key in files_changed out_of_scope uncommitted; do
        case $key in
        files_changed) json_list 1 ${r_files[@]+"${r_files[@]}"} ;;
        out_of_scope) json_list 1 ${r_outside[@]+"${r_outside[@]}"} ;;
        *) json_list 1 ${r_left[@]+"${r_left[@]}"} ;;
        esac
        ! cut "$record" "\"$key\": []" || record="$before\"$key\": $answer$behind"
    done
}

# Records that a task was running when everything was ended.
task_interrupted() { # NUMBER REASON
    local record
    read_record "$run_dir/tasks/${x_name[$1]}/result.json" || begun_record "$1"
    record=${answer//'"status": "running"'/'"status": "interrupted"'}
    json_set "$record" status '"interrupted"'
    record=$answer
    json_string "$2"
    json_set "$record" reason "$answer"
    record=$answer
    stamp
    json_set "$record" ended_at "\"$answer\""
    record=$answer
    if [ ! -d "$run_dir/tasks/${x_name[$1]}" ] && ((x_agent_started[$1])); then
        make_folder "$run_dir/tasks/${x_name[$1]}"
        { : >"$run_dir/tasks/${x_name[$1]}/.agent-started"; } 2>/dev/null
    fi
    [ "$2" != interrupted ] || add_changes "$1"
    make_event "$now" stopped task "${x_name[$1]}" - "{\"reason\": \"$2\"}"
    put_task_event "$1" "$answer"
    put_result "$1" "$record"
    say "${x_name[$1]}" interrupted
}

# Appends an event to a task's log, and in a whole run to the run's.
put_task_event() { # NUMBER EVENT
    local folder=$run_dir/tasks/${x_name[$1]} torn kept=$sequence
    make_folder "$folder"
    count_events "$folder/events.jsonl"
    { printf '%s{"schema": 1, "seq": %d, %s\n' "${torn:+$newline}" $((sequence + 1)) "$2" \
        >>"$folder/events.jsonl"; } 2>/dev/null || records_failed "$folder/events.jsonl"
    sequence=$kept
    ((!whole)) || put_event "$2"
}
whole=0 sequence=0 lost_agents=' '

# --- Gate -----------------------------------------------------------------------------------

# What must hold before anything is done.
prepare() {
    use_no_task
    fill "$plan_base"
    commit_of "$answer" || {
        git_plain -C "$root" rev-parse --verify --quiet HEAD >/dev/null ||
            die 4 "the repository $root has no commit yet" "make a first one"
        fill "$plan_base"
        die 2 "the base '$answer' is no commit of this repository"
    }
    base_now=$answer
    expand || die 2 "$why"
    list_names
    choose 0
    [ -d "$run_dir" ] || check_dependencies || die 3 "$why" "$hint"
    require_agents
}

# Claims the run, and the branches as far as they are known.
claim_run() {
    local things=()
    ((is_dynamic)) || name_branches
    must_claim "run $run_id" ${things[@]+"${things[@]}"}
}

# Sets `things` to the branches of the chosen tasks, as they are claimed.
name_branches() {
    local number
    things=(${x_branch[@]+"${x_branch[@]/#/branch }"})
    ((${#only_words[@]})) || return 0
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        ((x_chosen[number])) || unset "things[number]"
    done
}

new_run_state() {
    gate_status='' gate_reason='' gate_started='' gate_ended='' run_status=running run_code=''
    started_parts='' done_parts=$newline finished_at='' has_run=0
    base_commit='' integration='' run_ended='' preflight_json=() backup_json=() postflight_json=()
    passed_backups=''
    stamp
    run_started=$answer
}

# Makes the folder of a new run, or takes up an old one.
enter() {
    new_run_state
    if [ -d "$run_dir" ] && [ -n "$(ls -A -- "$run_dir")" ]; then
        ((is_resumed)) || die 3 "there is a run '$run_id' already" \
            "go on with it by RESUME=1, or give another RUN_ID"
        load_run
        require_same_plan 0
        choose 0
        open_events
        interrupt_dead 1
        check_dependencies || die 3 "$why" "$hint"
        ((!is_dynamic)) || claim_run
        run_status=running run_code='' run_ended=''
        begin_run resumed '{}'
        if [ "$gate_status" = passed ] && [ "$started_parts" != "$part_lines" ]; then
            write_plan || die 1 "the plan cannot be recorded in $run_dir"
            save_gate
        fi
        return
    fi
    ((!is_resumed)) || [ -d "$run_dir" ] ||
        die 2 "there is no run '$run_id' to go on with" "check RUN_ID and LOG_ROOT"
    exclude_runs
    if ! why=$({ LC_ALL=C mkdir -p -- "$run_dir" && : >"$run_dir/.started"; } 2>&1); then
        die 1 "cannot make $run_dir: ${why##*: }" "give a LOG_ROOT that can be written to"
    fi
    open_events
    begin_run started "{\"base\": \"$base_now\"}"
}

begin_run() { # WORD DATA
    export_values
    start_jobs "$run_dir"
    run_event "$1" run - "$2"
}

# Keeps the folders of runs out of git, without touching a tracked file.
exclude_runs() {
    local path=$common/info/exclude
    read_file "$path"
    case $newline$answer$newline in
    *"$newline/.worker-runs/$newline"* | *"$newline.worker-runs/$newline"*) return ;;
    esac
    make_folder "$common/info"
    (
        umask "$caller_umask"
        printf '%s/.worker-runs/\n' "${answer:+$newline}" >>"$path"
    )
}

# Preflight, base, items, backups. Fails with `why` and `hint` when the gate refuses.
run_gate() {
    local place lost fixed=0 has_steps=0
    find_lost
    if [ "$gate_status" = passed ] && [ -z "$lost" ]; then
        say gate "passed already"
        return 0
    fi
    # Base and items are found out once.
    [ ! -e "$run_dir/plan.json" ] || fixed=1
    use_no_task
    stamp
    gate_status=running gate_reason='' gate_started=$answer gate_ended='' passed_backups='' hint=''
    # Without a step nothing can go wrong before it has passed.
    [ "$plan_preflight$plan_backups$is_dynamic" = --0 ] || has_steps=1
    ((!has_steps)) || { : >"$run_dir/.gate"; } 2>/dev/null || records_failed "$run_dir/.gate"
    kept_list "$plan_backups" "$lost" ${backup_json[@]+"${backup_json[@]}"}
    backup_json=(${h_json[@]+"${h_json[@]}"})
    new_list "$plan_postflight"
    postflight_json=(${h_json[@]+"${h_json[@]}"})
    kept_list "$plan_preflight" '' ${preflight_json[@]+"${preflight_json[@]}"}
    preflight_json=(${h_json[@]+"${h_json[@]}"})
    run_event started gate - '{}'
    ((!has_steps)) || save_gate
    gate_steps
    place=$?
    ((!has_steps)) || rm -f -- "$run_dir/.gate"
    use_no_task
    stamp
    gate_ended=$answer
    if ((place != 0)) || [ -n "$interrupted" ]; then
        gate_status=gate-refused gate_reason=$why
        [ -z "$interrupted" ] || gate_status=interrupted gate_reason=interrupted
        json_string "$gate_reason"
        place=error
        [ -z "$interrupted" ] || place=stopped
        run_event "$place" gate - "{\"reason\": $answer}"
        save_gate
        why=$gate_reason
        return 1
    fi
    gate_status=passed
    # The manifest follows as soon as the first tasks have been started.
    save_gate_alone
    dirty=1
    run_event completed gate - '{}'
    [ -z "$trouble" ] || why=$trouble
    [ -z "$trouble" ]
}

gate_steps() {
    local place
    why='' hint=''
    kept_list "$plan_preflight" '' ${preflight_json[@]+"${preflight_json[@]}"}
    run_list "$plan_preflight" preflight preflight save_preflight || return 1
    if ((!fixed)); then
        base_commit=$base_now
        fill "$plan_base"
        # Only a command of the plan's can have moved it.
        if [ "$plan_preflight" != - ] && ! commit_of "$answer"; then
            why="the base is no commit of this repository any more"
            return 1
        fi
        [ "$plan_preflight" = - ] || base_commit=$answer
        expand_at_gate || return 1
    fi
    use_no_task
    kept_list "$plan_backups" '' ${backup_json[@]+"${backup_json[@]}"}
    run_list "$plan_backups" backup backups save_backups || return 1
    remember_backups
    write_plan || {
        why="the plan cannot be recorded in $run_dir"
        return 1
    }
}

# Sets `lost` to the backups that passed and whose artifact is gone, or is older than the run.
find_lost() {
    local id path
    lost=''
    use_no_task
    listed "$plan_backups"
    for id in $answer; do
        take_command "$id"
        case " $passed_backups" in *" $c_name "*) ;; *) continue ;; esac
        [ "$c_artifact" != - ] || continue
        fill "$c_artifact"
        rooted "$answer"
        path=$answer
        if [ ! -f "$path" ] || [ ! -s "$path" ] || [ "$run_dir/.started" -nt "$path" ]; then lost+="$c_name "; fi
    done
}

remember_backups() {
    local place
    passed_backups=''
    for ((place = 0; place < ${#h_name[@]}; place++)); do
        [ "${h_status[place]}" != passed ] || passed_backups+="${h_name[place]} "
    done
}

# Finds out the items, then demands that names, branches and worktrees are free.
expand_at_gate() {
    local row number refs place things
    if ((is_dynamic)); then
        for ((row = 0; row < ${#task_name[@]}; row++)); do
            case ${task_each[row]} in
            file:* | run:*) read_items "$row" "${task_each[row]}" || return 1 ;;
            esac
        done
        if ! expand; then
            # The run goes on without the tasks that were to be found.
            place=$why
            items_of=() items_known=()
            expand
            why=$place
            return 1
        fi
        choose 1
        read_results
        check_dependencies || return 1
        name_branches
        if ((${#things[@]})) && ! claim "${things[@]}"; then
            why=$rival
            return 1
        fi
    fi
    # The branch that is checked out here has a star before it.
    refs=$(git_plain -C "$root" for-each-ref --format='%(HEAD)%(refname)' refs/heads/) || {
        why="git for-each-ref failed"
        return 1
    }
    # One that a checkout is on may have no commit yet.
    set +f
    for place in "$common/HEAD" "$common"/worktrees/*/HEAD; do
        if read_file "$place" && [ "${answer#ref: }" != "$answer" ]; then
            refs+="${refs:+$newline} ${answer#ref: }"
        fi
    done
    set -f
    integration=''
    case $refs in *"*"*) integration=${refs#*"*"} integration=${integration%%"$newline"*} ;; esac
    require_free "$refs"
}

# Finds the bases of all tasks; of those behind `until` when the one there, `lost`, is no commit.
find_bases() {
    local number row=${task_base[0]-0} before='' last=''
    if are_all "$row" ${task_base[@]+"${task_base[@]}"} && [ -z "${text[row]-}" ]; then
        x_base=(${x_name[@]+"${x_name[@]/*/$base_commit}"})
        return
    fi
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        use_task "$number"
        fill "$t_base"
        if [ -z "$answer" ]; then
            answer=$base_commit
        elif [ "$answer" = "$before" ]; then
            answer=$last
        else
            before=$answer
            if ! commit_of "$before"; then
                lost=$before until=$number
                return
            fi
            last=$answer
        fi
        x_base[number]=$answer
    done
}

# Demands it of the tasks that run for certain, which are `x_free` then, and finds all bases.
require_free() { # REFS
    local number row is_new=0 lost='' taken='' until=${#x_row[@]}
    # Its record says the base from now on.
    if [ ! -e "$run_dir/tasks" ] && ((!${#only_words[@]})) && are_none ${task_when[@]+"${task_when[@]}"} &&
        are_all not-started ${x_status[@]+"${x_status[@]}"}; then
        x_json=(${x_name[@]+"${x_name[@]/*/}"}) x_free=(${x_name[@]+"${x_name[@]/*/1}"})
        is_new=1
    fi
    for ((number = 0; number < ${#x_row[@]} && !is_new; number++)); do
        [ "${x_status[number]}" != not-started ] || x_json[number]=''
        row=${x_row[number]}
        [ "${task_when[row]}${x_chosen[number]}" != -1 ] ||
            [ -d "$run_dir/tasks/${x_name[number]}" ] || x_free[number]=1
    done
    some_blank=1
    find_bases
    if ((until)); then
        taken=$(printf '%s\n' "${1:--}" '' "${x_free[@]:0:until}" '' "${x_branch[@]:0:until}" | find_taken)
    fi
    [ -z "$taken" ] || until=${taken%% *}
    for ((number = 0; number < until; number++)); do
        [ -e "$worktree_root" ] || break
        ((x_free[number])) || continue
        [ -e "${x_worktree[number]}" ] || [ -L "${x_worktree[number]}" ] || continue
        why="the worktree ${x_worktree[number]} of task ${x_name[number]} exists already"
        hint="remove it with \`git worktree remove\`, or set worktree_root"
        return 1
    done
    case $taken in
    *' at '*)
        why="the branch '${taken#* at }' is in the way of task ${x_name[until]}"
        hint="merge and delete it, or give the task another branch"
        return 1
        ;;
    *' below')
        why="branches below '${x_branch[until]}/' are in the way of task ${x_name[until]}"
        hint="merge and delete them, or give the task another branch"
        return 1
        ;;
    esac
    [ -z "$lost" ] || { why="the base '$lost' is no commit of this repository" && return 1; }
}

# Prints the first of the branches that is in the way or has others below it, without regard to
# case: its place, and `at` what, or `below`. It reads refs, which tasks count, and their branches,
# an empty line between them.
find_taken() {
    LC_ALL=C awk '
    $0 == "" { part++; next }
    part == 0 {
        name = tolower(substr($0, 13))
        refs[name]
        while (sub("/[^/]*$", "", name)) below[name]
    }
    part == 1 { counts[tasks++] = $0 }
    part == 2 && counts[place++] && !found {
        name = $0
        do {
            if (tolower(name) in refs) found = (place - 1) " at " name
        } while (!found && sub("/[^/]*$", "", name))
        if (!found && tolower($0) in below) found = (place - 1) " below"
    }
    END { if (found) print found }'
}

# Finds what a task iterates over: the lines of a file, or those that a command prints.
read_items() { # ROW FOR_EACH
    local path what log count=0 line lines='' number
    use_no_task
    if [ "${2%%:*}" = file ]; then
        fill "${2#file:}"
        rooted "$answer"
        path=$answer
        why=''
        [ -r "$path" ] || why='Permission denied'
        [ ! -d "$path" ] || why='Is a directory'
        [ -e "$path" ] || why='No such file or directory'
        if [ -n "$why" ]; then
            why="for_each: cannot read $path: $why"
            return 1
        fi
        what="the file $path"
    else
        make_folder "$run_dir/preflight"
        printf -v number '%02d' $(($1 + 1))
        log=$run_dir/preflight/for-each-$number.log
        path=$log
        command_clear "${2#run:}"
        what="\`$answer\`"
        rm -f -- "$log"
        run_job items_job "${2#run:}" "$log"
        case $over_how in
        passed) ;;
        *)
            why="for_each $what: $over_how"
            hint="look at $log.stderr"
            return 1
            ;;
        esac
    fi
    if (($(tr -cd '\000' <"$path" | wc -c) > 0)); then
        why="for_each: $what gives a NUL"
        return 1
    fi
    if (($(wc -c <"$path") > 10000000)); then
        why="for_each: $what gives more than 10,000,000 bytes"
        return 1
    fi
    while IFS= read -r line || [ -n "$line" ]; do
        line=${line%$'\r'}
        [ -n "$line" ] || continue
        lines+=$line$newline
        count=$((count + 1))
        if ((count > 10000)); then
            why="for_each: $what gives more than 10000 items"
            return 1
        fi
    done <"$path"
    items_of[$1]=$lines
    items_known[$1]=1
}

# The job of a command that prints items: only what it prints on stdout is a list.
items_job() { # COMMAND LOG
    command_argv "$1"
    # shellcheck disable=SC2016 # for the inner shell
    run_program "$c_ms" "$run_dir/preflight" "$root" /dev/null "$2" \
        bash -c 'exec "$@" 2>"$0"' "$2.stderr" "${argv[@]}"
    case $outcome in
    failed) outcome="failed, exit code $code" ;;
    lost) outcome=$why ;;
    esac
    tell "over|$this_job|$outcome"
}

# Sets `rows` to the tasks as the recorded plan holds them.
list_tasks() {
    local number row id owns after changelog known made words=() patterns=() branches worktrees IFS=$IFS
    if ((!${#prompt_digest[@]})) && [ -n "$plan_rows" ] && are_all "$base_commit" "${x_base[@]}" &&
        are_none "${task_owns[@]}" "${task_changelog[@]}" "${task_estimate[@]}" "${x_after[@]}"; then
        made='"name": "%s",N"number": %s,N"item": null,N"branch": "%s",N"worktree": TREE,N"base": "BASE",N"owns": [],N"depends_on": [],N"changelog": null,N"estimate_minutes": null,N"prompt_sha256": "%s"'
        made=",$newline  {$newline   ${made//,N/,$newline   }$newline  }"
        folder_format
        made=${made/BASE/$base_commit}
        IFS=': '
        # shellcheck disable=SC2059,SC2086 # the format is a record, words are split
        printf -v rows "${made/TREE/$answer}" $plan_rows
        return
    fi
    json_strings ${x_branch[@]+"${x_branch[@]}"}
    branches=(${quoted[@]+"${quoted[@]}"})
    json_strings ${x_worktree[@]+"${x_worktree[@]}"}
    worktrees=(${quoted[@]+"${quoted[@]}"})
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        row=${x_row[number]}
        owns='[]' after='[]' changelog=null answer=null
        if [ "${task_owns[row]}${task_changelog[row]}${x_has_item[number]}" != --0 ]; then
            use_task "$number"
            find_owned
            json_strings ${patterns[@]+"${patterns[@]}"}
            json_list 3 ${quoted[@]+"${quoted[@]}"}
            owns=$answer
            text_or_null "$t_changelog"
            changelog=$answer answer=null
            ((!item_known)) || json_string "$item"
        fi
        known=$answer
        if [ -n "${x_after[number]}" ]; then
            set --
            for id in ${x_after[number]}; do set -- "$@" "\"${x_name[id]}\""; done
            json_list 3 "$@"
            after=$answer
        fi
        words+=("${x_name[number]}" "$row" "$known" "${branches[number]}" "${worktrees[number]}"
            "${x_base[number]}" "$owns" "$after" "$changelog" "${task_estimate[row]/#-/null}"
            "${prompt_digest[number]:-${digest[task_prompt[row]]-}}")
    done
    made='"name": "%s",N"number": %s,N"item": %s,N"branch": %s,N"worktree": %s,N"base": "%s",N"owns": %s,N"depends_on": %s,N"changelog": %s,N"estimate_minutes": %s,N"prompt_sha256": "%s"'
    rows=''
    # shellcheck disable=SC2059 # the format is a record
    ((!${#words[@]})) || printf -v rows ",$newline  {$newline   ${made//,N/,$newline   }$newline  }" "${words[@]}"
}

# Records the plan as it was resolved.
write_plan() {
    local made rows place id values=''
    hash_prompts || return 1
    list_tasks
    rows=${rows#,}
    use_no_task
    json_string "$plan_run_name"
    made="{$newline \"schema\": 1,$newline \"plan_sha256\": \"$plan_sha256\",$newline \"run_id\": \"$run_id\",$newline \"run_name\": $answer,"
    json_string "$root"
    made+="$newline \"repo\": $answer,"
    text_or_null "$plan_base"
    made+="$newline \"base\": $answer,$newline \"base_commit\": \"$base_commit\","
    json_optional "$integration"
    made+="$newline \"integration_branch\": $answer,"
    json_string "$worktree_root"
    made+="$newline \"worktree_root\": $answer,$newline \"max_parallel\": $max_parallel,$newline \"on_failure\": \"$plan_on_failure\","
    listed "$plan_checks"
    set --
    for id in $answer; do
        command_clear "$id"
        json_string "$answer"
        set -- "$@" "$answer"
    done
    json_list 1 "$@"
    made+="$newline \"checks\": $answer,"
    text_or_null "$plan_changelog_file"
    made+="$newline \"changelog_file\": $answer,$newline \"setup_minutes\": ${plan_setup_minutes/#-/null},"
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        json_string "${variable_value[place]}"
        values+="${values:+,}$newline  \"${variable_name[place]}\": $answer"
    done
    made+="$newline \"variables\": {${values:+$values$newline }},"
    write_file "$run_dir/plan.json" "$made$newline \"tasks\": [${rows:+$rows$newline }]$newline}$newline"
}

# Makes the folder of a task that is started, and in the same process those of the next ones.
make_folders() { # NUMBER
    [ ! -d "$run_dir/tasks/${x_name[$1]}" ] || return 0
    # Below a folder of its own the system looks up less of each path.
    (cd -- "$run_dir" && set -- "${x_name[@]:$1:50}" && exec mkdir -p -- "${@/#/tasks/}")
}

# Sets `prompt_digest` to the SHA-256 of prompts with placeholders; others stand in the plan.
hash_prompts() {
    local number row asked=() files=() out place=0
    prompt_digest=()
    case " $plan_rows " in '  ' | *:-\ *) ;; *) return ;; esac
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        row=${x_row[number]}
        [ -z "${digest[task_prompt[row]]-}" ] || continue
        use_task "$number"
        fill "$t_prompt"
        ((${#asked[@]})) || mkdir -p -- "$run_dir/.prompts" || return 1
        asked+=("$number") files+=("$run_dir/.prompts/$number")
        { printf '%s' "$answer" >"$run_dir/.prompts/$number"; } 2>/dev/null || return 1
    done
    ((${#asked[@]})) || return 0
    for ((number = 0; number < ${#files[@]}; number += 500)); do
        hash_files "${files[@]:number:500}" || return 1
        for out in $digests; do
            prompt_digest[asked[place]]=$out
            place=$((place + 1))
        done
    done
    rm -rf -- "$run_dir/.prompts"
}

text_or_null() { # TEXT|-
    if [ "$1" = - ]; then
        answer=null
        return
    fi
    fill "$1"
    json_string "$answer"
}

# Notes which of the steps that were just read have had their turn.
note_done() { # KIND
    local place
    for ((place = 0; place < ${#h_name[@]}; place++)); do
        [ "${h_status[place]}" != passed ] || done_parts+="$1 ${h_name[place]}$newline"
    done
}

# Sets `changed` to what in the plan differs from what this run was started with and has had its
# turn.
find_changes() {
    local line name number before='' after=''
    changed=''
    [ "$gate_status" != passed ] || done_parts+="base-or-for_each -$newline"
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        ! is_in_rerun "$number" || continue
        if ((x_agent_started[number])) || is_well "$number"; then
            use_task "$number"
            done_parts+="tasks ${text[t_name]}$newline"
        fi
    done
    local IFS=$newline
    for line in $started_parts $part_lines; do
        name=${line% *}
        # The same on both sides, or not had its turn.
        case $newline$started_parts$newline in *"$newline$line$newline"*)
            case $newline$part_lines$newline in *"$newline$line$newline"*) continue ;; esac
            ;;
        esac
        case $gate_status:$name in
        passed:preflight\ * | passed:backups\ * | *:settings\ * | *:variables\ *) ;;
        *) case $done_parts in *"$newline$name$newline"*) ;; *) continue ;; esac ;;
        esac
        case ", $changed, " in *", ${name% -}, "*) ;; *) changed+="${changed:+, }${name% -}" ;; esac
    done
    # The gate has recorded the tasks by their places.
    [ "$gate_status" = passed ] || return 0
    for line in $started_parts; do case $line in "tasks "*) before+="${line% *}$newline" ;; esac done
    for line in $part_lines; do case $line in "tasks "*) after+="${line% *}$newline" ;; esac done
    [ "$before" = "$after" ] || changed="the list of tasks${changed:+, $changed}"
}

# Whether RERUN names a task, by its name or the plan's.
is_in_rerun() { # NUMBER
    is_in "$1" ${rerun_words[@]+"${rerun_words[@]}"}
}

# Demands the plan that the run was started with; unless strict, steps and tasks that have not had
# their turn may differ.
require_same_plan() { # STRICT
    local place name hint="render the plan as it was, or start a new run"
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        name=PLAN_${variable_name[place]}
        [ -z "${!name+set}" ] || [ "${!name}" = "${variable_value[place]}" ] ||
            die 3 "$name is not what this run was started with" "leave it away, or start a new run"
    done
    [ -n "$started_parts" ] && [ "$started_parts" != "$part_lines" ] || return 0
    find_changes
    name=${changed//, tasks /,}
    case $1:$name in
    *", "*) ;;
    0:"tasks "*)
        quote_word "${name#tasks }"
        hint+=", or run again what has changed: RERUN=$answer"
        ;;
    esac
    name=${changed//, variables /,}
    case $name in
    *", "*) ;;
    "variables "*)
        name=${name#variables }
        [ -e "$run_dir/plan.json" ] ||
            hint="render the plan as it was and give PLAN_${name//,/=... PLAN_}=..., or start a new run"
        ;;
    esac
    [ -n "$changed" ] || hint="only later steps differ: take them up with RESUME=1"
    if [ -n "$changed" ] || (($1)); then
        die 3 "the plan has changed since this run was started${changed:+: $changed}" "$hint"
    fi
}

# Takes up what is recorded of the run: gate, plan, tasks, manifest.
load_run() {
    local before behind manifest kept line number=-1 row='' name='' base='' place
    [ -d "$run_dir" ] || die 2 "there is no run '$run_id' in $runs" "run the phase \`gate\` first"
    new_run_state
    if read_record "$run_dir/gate.json"; then
        manifest=$answer
        get_all "$manifest" status gate_status reason gate_reason started_at gate_started \
            ended_at gate_ended
        json_raw "$manifest" parts
        started_parts=${answer#"[$newline  \""}
        started_parts=${started_parts%"\"$newline ]"}
        started_parts=${started_parts//"$between_parts"/$newline}
        read_list "$manifest" preflight
        preflight_json=(${h_json[@]+"${h_json[@]}"})
        note_done preflight
        read_list "$manifest" backups
        backup_json=(${h_json[@]+"${h_json[@]}"})
        note_done backups
        remember_backups
    fi
    if read_record "$run_dir/manifest.json"; then
        manifest=$answer
        json_get "$manifest" repo
        [ "$answer" = "$root" ] || die 2 "the run '$run_id' is one of the repository $answer" \
            "run this there, or give another LOG_ROOT"
        get_all "$manifest" started_at run_started integration_branch integration \
            base base_commit status run_status exit_code run_code ended_at run_ended
        finished_at=$run_ended
        read_list "$manifest" postflight
        postflight_json=(${h_json[@]+"${h_json[@]}"})
        note_done postflight
    fi
    items_of=() items_known=()
    if read_record "$run_dir/plan.json"; then
        kept=$answer
        get_all "$kept" base_commit base_commit integration_branch integration
        # The values that the gate saw hold for the whole run.
        for ((place = 0; place < ${#variable_name[@]}; place++)); do
            cut "$kept" "$newline  \"${variable_name[place]}\": "
            row=${behind%%"$newline"*}
            json_text "${row%,}"
            variable_value[place]=$answer
        done
        recorded_bases=()
        local IFS=$newline
        for line in $kept; do
            case $line in
            '   "number": '*)
                row=${line#'   "number": '}
                row=${row%,}
                ;;
            '   "item": '*)
                line=${line#'   "item": '}
                line=${line%,}
                [ "$line" != null ] || continue
                json_text "$line"
                items_of[row]=${items_of[row]-}$answer$newline
                items_known[row]=1
                ;;
            '   "name": '*)
                name=${line#'   "name": "'}
                name=${name%\",}
                ;;
            '   "base": '*)
                base=${line#'   "base": "'}
                recorded_bases+=("$name ${base%\",}")
                ;;
            esac
        done
        IFS=$' \t\n'
        expand || die 1 "$why"
        for ((place = 0; place < ${#x_row[@]}; place++)); do
            x_base[place]=$base_commit
            line=${recorded_bases[place]-}
            [ "${line% *}" != "${x_name[place]}" ] || x_base[place]=${line##* }
        done
    else
        expand || die 1 "$why"
    fi
    list_names
    find_lost_agents
    read_results
}

read_results() {
    local number
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        read_result "$number" || miss_record "$number"
    done
}

# Takes up that a task has no record. Of an agent that had started it is known without one too.
miss_record() { # NUMBER
    forget_record "$1"
    case $lost_agents in *" ${x_name[$1]} "*) ;; *) return ;; esac
    start_record "$1"
    r_status=failed r_reason='its agent had started, and its record is gone' r_agent_started=true
    make_record
    take_result "$1" "$answer"
}

# Sets `lost_agents` to the tasks whose agent was started, as the run's events tell, and that have no
# record: a task may lose its folder.
find_lost_agents() {
    local name folder out
    lost_agents=' '
    [ -s "$run_dir/events.jsonl" ] || return 0
    out=$(sed -n 's/^.*"event": "started", "task": "\([^"]*\)", "phase": "agent".*$/\1/p' \
        "$run_dir/events.jsonl")
    for name in $out; do
        folder=$run_dir/tasks/$name
        [ -e "$folder/result.json" ] || [ -e "$folder/.job" ] || lost_agents+="$name "
    done
}

# Turns what is still said to run into `interrupted`. Ends the runner when another process works
# on one of the run's tasks.
interrupt_dead() { # END
    local number
    ((!${#x_name[@]})) || must_claim "${x_name[@]/#/task $run_id/}"
    if (($1)); then
        find_unended
        end_old_jobs
        end_tree "AGENT_WORKERS_RUN=$run_dir/" prefix ||
            die 1 "processes of this run are still alive: $answer" "end them by hand, then run this again"
        forget_ends
    fi
    read_results
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${x_status[number]}" != running ] || task_interrupted "$number" "the runner was killed"
    done
    if [ -e "$run_dir/gate.json" ] && [ "$gate_status" = running ]; then
        read_record "$run_dir/gate.json"
        number=$answer
        read_list "$number" preflight
        settle_list
        preflight_json=(${h_json[@]+"${h_json[@]}"})
        read_list "$number" backups
        settle_list
        backup_json=(${h_json[@]+"${h_json[@]}"})
        gate_status=interrupted
        [ "$run_status" != running ] || run_status=interrupted
        save_gate
    fi
    if [ -e "$run_dir/manifest.json" ]; then
        read_record "$run_dir/manifest.json"
        read_list "$answer" postflight
        settle_list
        postflight_json=(${h_json[@]+"${h_json[@]}"})
    fi
    if [ "$run_status" = running ]; then
        run_status=interrupted
        save_manifest
    fi
}

# --- Tasks ----------------------------------------------------------------------------------

# Says `what` ended a task, and leaves its work.
fail_task() { # STATUS REASON
    r_status=$1 r_reason=$2
    return 1
}

# The job of a task, whose record was begun by the coordinator.
task_job() { # NUMBER
    local number=$1 folder=$run_dir/tasks/${x_name[$1]} word known='' torn
    use_task "$number"
    this_task=${x_name[number]}
    ! read_record "$folder/result.json" || known=$answer
    count_events "$folder/events.jsonl"
    exec 5>>"$folder/events.jsonl" || exit 1
    [ -z "$torn" ] || printf '\n' >&5
    export TASK=$this_task WORKTREE=${x_worktree[number]}
    ((!item_known)) || export PLAN_item=$item
    place_mark=$folder place_folder=$root place_log=$folder/when.log
    verdict=0
    [ "$t_when" = - ] || ((x_agent_started[number])) || decide "$t_when"
    case $verdict in
    0)
        job_event started task - '{}'
        # What an earlier try recorded must not be taken for the end of this one.
        if { [ -z "$known" ] || save_task "$folder"; } && do_task "$number" "$folder" "$known"; then :; fi
        ;;
    1) r_status=skipped r_reason='its condition does not hold' ;;
    2) r_status=failed r_reason=$why ;;
    esac
    clock
    seconds_between "${x_began[number]}" "$now"
    r_seconds=$answer
    at "$now"
    r_ended=$answer
    word=error
    case $r_status in
    passed) word=completed ;;
    no-change) ((!a_allow_no_change)) || word=completed ;;
    timed-out) word=timed_out ;;
    skipped) word=cancelled ;;
    esac
    json_optional "${r_reason:0:2000}"
    job_event "$word" task - "{\"status\": \"$r_status\", \"reason\": $answer}"
    make_record
    kill -0 "$$" || exit 1
    word=$answer
    keep_folder "$folder"
    answer=$word
    if { printf '%s\n' "$answer" >"$folder/.result"; } 2>/dev/null; then
        # The coordinator waits for the end of this process before it reads the record.
        tell "over|$this_job|done"
        exec mv -f -- "$folder/.result" "$folder/result.json" 3>&- 5>&-
    fi
    write_error=$({ printf '%s\n' "$answer" >"$folder/.result"; } 2>&1)
    rm -f -- "$folder/.result"
    tell "over|$this_job|${write_error##*: }"
}

# Writes the record of a running task; a task whose record cannot be kept does not go on.
save_task() { # FOLDER
    # A job whose coordinator is gone has nothing to say any more.
    kill -0 "$$" 2>/dev/null || exit 1
    keep_folder "$1"
    make_record
    write_file "$1/result.json" "$answer$newline" ||
        fail_task failed "its record cannot be written: $write_error" || return
    tell "record|$this_job|"
}

# Makes the folder of a task's records again if it is gone; the run's own is not made again.
keep_folder() { # FOLDER
    [ ! -d "$1" ] && [ -d "$run_dir" ] || return 0
    mkdir -p -- "$1" 2>/dev/null && exec 5>>"$1/events.jsonl"
}

# Answers what is known of an agent when its runner was not there any more: its exit code, -1 when
# it was never started, nothing when it was and nothing says how it ended.
agent_end() { # NUMBER
    local folder=$run_dir/tasks/${x_name[$1]}
    if [ -e "$folder/.agent-started" ]; then
        read_file "$folder/.agent-exit"
        case $answer in *[!0-9]*) answer='' ;; esac
    else
        answer=-1
    fi
}

# Answers what the mapping of an agent says of an exit code, after a colon; empty when it says
# nothing.
meaning_of() { # CODE
    local word
    listed "$a_exit_codes"
    set -- "$1" "$answer"
    answer=''
    for word in $2; do
        [ "${word%%:*}" = "$1" ] || continue
        fill "${word#*:}"
        answer=": $answer"
    done
}

# Worktree, setup, agent, changes, verify. Fails with the task's status. KNOWN is the record of an
# earlier try; an agent that ended meanwhile is not started again.
do_task() { # NUMBER FOLDER KNOWN
    local number=$1 folder=$2 known=$3 prompt log word status='' stamp='' ended=-1 lost=0
    if [ -n "$known" ] && ((x_agent_started[number])); then
        json_get "$known" status
        if [ "$answer" = interrupted ] && ! is_in_rerun "$number"; then
            agent_end "$number"
            ended=${answer:--1}
        fi
    fi
    new_list "$t_verify"
    r_verify=(${h_json[@]+"${h_json[@]}"})
    new_list "$t_setup"
    if [ -n "$known" ] && [ -d "${x_worktree[number]}" ]; then
        read_list "$known" setup
        # shellcheck disable=SC2090 # records
        kept_list "$t_setup" '' ${h_json[@]+"${h_json[@]}"}
    fi
    r_setup=(${h_json[@]+"${h_json[@]}"})
    fill "$t_prompt"
    prompt=$answer
    { printf '%s' "$prompt" >"$folder/prompt.md"; } 2>/dev/null ||
        fail_task failed "its prompt cannot be written" || return
    if [ "$a_prompt_mode" = argument ] && ((${#prompt} > 131071)); then
        fail_task failed "the prompt is too long for an argument; use stdin or file" || return
    fi
    make_worktree "$number" "$known" || return
    run_task_steps "$number" "$folder" setup || return
    after_setup "$number" "$folder" || return
    fill "$a_log_name"
    r_log=tasks/$this_task/$answer
    log=$folder/$answer
    r_agent_started=true
    if ((ended >= 0)); then
        tell "say|$this_job|$this_task|agent had ended"
        r_code=$ended status=passed
        ((ended == 0)) || status=failed
    else
        run_agent "$number" "$folder" "$prompt" "$log" || return
    fi
    [ -d "$folder" ] || lost=1
    keep_folder "$folder"
    word=exited
    [ "$status" != timed-out ] || word=timed_out
    job_event "$word" agent - "{\"status\": \"$status\", \"exit_code\": ${r_code:-null}}"
    collect "$number" "$stamp"
    word=$?
    ((word == 0)) || [ "$status" != passed ] || return 1
    case $status in
    timed-out)
        last_line "$log"
        fail_task timed-out "the agent timed out after $a_limit s${answer:+; its last line: $answer}"
        return
        ;;
    failed)
        meaning_of "$r_code"
        fail_task failed "the agent ended with exit code $r_code$answer"
        return
        ;;
    esac
    ((!lost)) || fail_task failed "the folder of its records, $folder, was removed" || return
    r_status=running r_reason=''
    judge "$number" "$folder"
}

# Sets `was_there` to what set-up left uncommitted, and `stamp` to a file of the moment when it was
# done. Both are kept for a try that has to go on after the agent was started.
after_setup() { # NUMBER FOLDER
    was_there=$newline
    [ "$t_setup" != - ] || return 0
    stamp=$2/.stamp
    if [ -e "$stamp" ] && read_file "$2/.setup"; then
        was_there=$newline$answer$newline
        return 0
    fi
    look "$1" || return
    was_there=$newline$entries$newline
    # The clock by which files are dated ticks slowly: what set-up wrote is older than this.
    { : >"$stamp.old"; } 2>/dev/null || fail_task failed "cannot write to $2" || return
    while : >"$stamp" && [ ! "$stamp" -nt "$stamp.old" ]; do sleep 0.005; done 2>/dev/null
    rm -f -- "$stamp.old"
    write_file "$2/.setup" "$entries$newline" || fail_task failed "cannot write to $2"
}

# Runs an agent and notes that it was started and how it ended, also when the runner is gone by
# then. What the shell itself would say does not get into the agent's log.
# shellcheck disable=SC2016 # another shell's
agent_shell='trap '"'exit 143'"' TERM INT HUP
exec 3>&2 2>/dev/null
umask 077
: >"$0/.agent-started" || exit 126
(umask "$1" && shift && exec "$@" 2>&3 3>&-)
code=$?
echo "$code" >"$0/.agent-exit"
exit "$code"
'

# Runs a task's agent to its end. Sets `status` and r_code.
run_agent() { # NUMBER FOLDER PROMPT LOG
    local number=$1 folder=$2 log=$4 word stdin=/dev/null path=$PATH hidden=()
    job_event started agent - '{}'
    if [ -e "$folder/.agent-started" ]; then rm -f -- "$folder/.agent-started" "$folder/.agent-exit"; fi
    # Where no record stands yet, that the agent was started is seen from what it leaves itself.
    if [ -e "$folder/result.json" ]; then
        save_task "$folder" || return
    else
        kill -0 "$$" 2>/dev/null || exit 1
        json_string "$r_log"
        tell "agent|$this_job|$answer"
    fi
    [ "$a_prompt_mode" != stdin ] || stdin=$folder/prompt.md
    agent_words=()
    listed "$a_env"
    for word in $answer; do
        fill "${word#*:}"
        agent_words+=("${word%%:*}=$answer")
        [ "${word%%:*}" != PATH ] || path=$answer
    done
    listed "$a_hide"
    for word in $answer; do
        case ,$a_env in
        *",$word:"*) ;;
        *)
            ((${#hidden[@]})) || hidden=(env)
            hidden+=(-u "$word")
            ;;
        esac
    done
    agent_argv "$number" "$3" "$folder/prompt.md"
    if ! PATH=$path is_program "${x_worktree[number]}" "${argv[0]}"; then
        agent_words=()
        fail_task failed "cannot run '${argv[0]}': $why"
        return
    fi
    mark_log "$log"
    run_program "$a_ms" "$folder" "${x_worktree[number]}" "$stdin" "$log" \
        ${hidden[@]+"${hidden[@]}"} sh -c "$agent_shell" "$folder" "$caller_umask" "${argv[@]}"
    agent_words=()
    status=$outcome
    r_code=$code
    if [ "$status" = lost ]; then
        fail_task failed "$why"
        return
    fi
    # Being ended is no end of its own.
    [ -n "$code" ] || rm -f -- "$folder/.agent-exit"
}

# Answers the last line of a log that says something, without control sequences, shortened.
last_line() { # LOG
    local line last='' IFS=$newline
    for line in $(tail -c 4096 -- "$1" 2>/dev/null | tr '\000\r' ' \n' |
        sed -e $'s/\033\\[[0-?]*[ -/]*[@-~]//g' -e $'s/\033\\][^\007\033]*\007//g' |
        tr '\001-\011\013-\037\177' ' '); do
        case $line in *[!\ ]*) last=$line ;; esac
    done
    while [ "$last" != "${last# }" ]; do last=${last# }; done
    while [ "$last" != "${last% }" ]; do last=${last% }; done
    answer=${last:0:200}
}

# Makes a task's worktree, or takes the one that an earlier try of it left.
make_worktree() { # NUMBER KNOWN
    local tree=${x_worktree[$1]} admin='' note=$run_dir/tasks/${x_name[$1]}/.made
    # The note is written when nothing of the names existed: what is found later is this run's.
    [ ! -e "$note" ] || remove_unlinked "$tree"
    if [ -e "$note" ] && [ -d "$tree" ]; then
        look "$1" || return
        [ "$branch" = "${x_branch[$1]}" ] ||
            fail_task failed "the worktree $tree is not on ${x_branch[$1]}" || return
        admin=$(become_git "$tree" rev-parse --path-format=absolute --git-dir 2>/dev/null)
        if read_file "$admin/agent-workers-run" && [ "$answer" != "$run_dir" ]; then
            fail_task failed "the worktree $tree is one of the run $answer"
            return
        fi
        # Without an index the runner was killed before the files were there.
        [ -e "$admin/index" ] || check_out "$1"
        return
    fi
    add_worktree "$1" "$2"
}

# Makes the branch and the worktree.
add_worktree() { # NUMBER KNOWN
    local tree=${x_worktree[$1]} name=${x_branch[$1]} base=${x_base[$1]} message tip='' code
    if ((!x_free[$1])) || [ -e "$note" ]; then
        tip=$(git_plain -C "$root" rev-parse --verify --quiet "refs/heads/$name")
    fi
    if [ -n "$tip" ]; then
        [ -e "$note" ] || fail_task failed "the branch '$name' exists already" || return
        [ -z "$2" ] || json_get "$2" head
        [ "$tip" = "$base" ] || [ "$tip" = "${2:+$answer}" ] ||
            fail_task failed "the branch '$name' has commits of somebody else" || return
    fi
    if exists "$tree"; then
        fail_task failed "the worktree $tree exists already" || return
    fi
    make_folder "$worktree_root"
    make_folder "$common/agent-workers/entries"
    [ -d "$common/worktrees" ] || (umask "$caller_umask" && exec mkdir -p -- "$common/worktrees")
    { : >"$note"; } 2>/dev/null || fail_task failed "cannot write $note" || return
    # Without a base the branch is there.
    [ -z "$tip" ] || base=''
    message=$(make_tree "$tree" "${x_name[$1]}" "refs/heads/$name" "$base" "$plain_layout" 2>&1)
    code=$?
    case $code in
    0)
        ((!plain_layout)) || return 0
        if git_lays_out "$tree" "$name"; then
            check_out "$1"
            return
        fi
        ;;
    10)
        # A branch of this name is not ours.
        rm -f -- "$note"
        fail_task failed "making the branch failed: $message"
        return
        ;;
    11) fail_task failed "making the worktree failed: ${message##*: }" ;;
    12) fail_task failed "git knows the worktree $tree already" ;;
    *)
        fail_task failed "checking out the worktree failed: $message"
        return
        ;;
    esac
    remove_unlinked "$tree"
    [ -z "$base" ] || git_plain -C "$root" update-ref -d "refs/heads/$name" "$base"
    return 1
}

# Becomes a shell that makes a branch, and a worktree with its files unless git lays it out. For
# $(...) alone.
make_tree() { # TREE NAME REF BASE PLAIN
    become_plain
    export GIT_CEILING_DIRECTORIES=${1%/*}
    exec sh -c "$tree_shell" "$run_dir" "$1" "$common/agent-workers/entries/$run_id.$2" \
        "$common/worktrees/$2" "$3" "$4" "$5" "$root" \
        git -c core.fsmonitor=false -c gc.auto=0 -c maintenance.auto=false -c core.hooksPath=/dev/null
}

# The entry of the worktree, see gitrepository-layout(5), appears whole, and after the tree: no other
# process reads half of one, or prunes it. `git worktree add` takes three processes for this, and
# fails beside another one. A small shell does it: from a large one each process takes twice as long.
# Ends with 10 without the branch, 11 without the worktree, 12 when git knows it already.
# shellcheck disable=SC2016 # another shell's
tree_shell='tree=$1 new=$2 entry=$3 ref=$4 base=$5 plain=$6 root=$7 count=
shift 7
if [ -n "$base" ]; then
    # The empty word demands that there is no such branch.
    "$@" -C "$root" update-ref -m "branch: Created from $base" "$ref" "$base" "" || exit 10
fi
[ "$plain" = 1 ] || exit 0
if [ -d "$new" ]; then mkdir -- "$tree"; else mkdir -- "$tree" "$new"; fi &&
    cd -P -- "$tree" && link=$PWD/.git &&
    printf "ref: %s\n" "$ref" >"$new/HEAD" &&
    printf "../..\n" >"$new/commondir" &&
    printf "%s\n" "$link" >"$new/gitdir" &&
    printf "%s" "$0" >"$new/agent-workers-run" || exit 11
while :; do
    if [ -e "$entry$count" ] || [ -h "$entry$count" ]; then
        IFS= read -r known 2>/dev/null <"$entry$count/gitdir" || known=
        [ "$known" != "$link" ] || exit 12
        count=$((${count:-0} + 1))
        continue
    fi
    printf "gitdir: %s\n" "$entry$count" >.git && mv -- "$new" "$entry$count" || exit 11
    # Where another process took the name meanwhile, it went inside.
    inside=$entry$count/${new##*/}
    [ -d "$inside" ] || break
    mv -- "$inside" "$new" || exit 11
done
exec "$@" -C "$tree" reset --hard --quiet
'

# Removes what is left of a worktree that never got its entry; anything else stays.
remove_unlinked() { # TREE
    local admin=''
    if [ -f "$1/.git" ]; then
        IFS= read -r admin <"$1/.git"
        admin=${admin#gitdir: }
        [ -z "$admin" ] || [ "${admin:0:1}" = / ] || admin=$1/$admin
        if [ -n "$admin" ] && exists "$admin"; then return; fi
        [ "$(ls -A -- "$1")" != .git ] || rm -f -- "$1/.git"
    fi
    [ ! -d "$1" ] || rmdir -- "$1" 2>/dev/null
}

# Has git make a worktree without files, which is not safe beside another process that does so.
git_lays_out() { # TREE BRANCH
    local admin
    make_folder "$common/agent-workers/locks"
    add_under_lock "$1" "$2" || {
        fail_task failed "git worktree add failed: ${message:-the lock on worktrees was not free}"
        return
    }
    IFS= read -r admin <"$1/.git"
    admin=${admin#gitdir: }
    [ "${admin:0:1}" = / ] || admin=$1/$admin
    # Which run made it: another one's is not taken for this one's.
    { printf '%s' "$run_dir" >"$admin/agent-workers-run"; } 2>/dev/null
}

# Fills a worktree that was added without its files.
check_out() { # NUMBER
    local message
    message=$(become_git "${x_worktree[$1]}" reset --hard --quiet 2>&1) ||
        fail_task failed "checking out the worktree failed: $message"
}

# Becomes a process whose files are the caller's. For $(...) alone.
become_plain() {
    umask "$caller_umask"
    trap - USR1
    export LC_ALL=C AGENT_WORKERS_RUN=$run_dir/git
    exec 3>&- 5>&- </dev/null
}

# Becomes git in a folder, with the caller's umask: its files are the caller's. For $(...) alone.
become_git() { # FOLDER WORD...
    local folder=$1
    shift
    become_plain
    export GIT_OPTIONAL_LOCKS=0
    # In a worktree that has lost its .git, git must not find a repository above it.
    [ "$folder" = "$root" ] || export GIT_CEILING_DIRECTORIES=${folder%/*}
    set -- -C "$folder" "$@"
    exec ${in_lock[@]+"${in_lock[@]}"} git -c core.fsmonitor=false -c gc.auto=0 -c maintenance.auto=false -c core.hooksPath=/dev/null \
        "$@"
}
in_lock=()

# Runs a task's setup or verify commands in its worktree.
run_task_steps() { # NUMBER FOLDER setup|verify
    local kind=$3 place=0 id list=$t_setup log clear name
    [ "$kind" = setup ] || list=$t_verify
    listed "$list"
    for id in $answer; do
        if [ "$kind" = setup ]; then
            json_get "${r_setup[place]}" status
            if [ "$answer" = passed ]; then
                place=$((place + 1))
                continue
            fi
            [ ! -e "$2/.setup" ] || rm -f -- "$2/.setup"
        fi
        command_clear "$id"
        clear=$answer name=$c_name
        printf -v log '%s/%s-%02d.log' "$2" "$kind" $((place + 1))
        step_json "$name" "$clear" running '' 0 '' ''
        keep_step "$kind" "$place"
        save_task "$2" || return
        mark_log "$log"
        run_step "$id" "$kind" "$2" "${x_worktree[$1]}" "$log"
        step_json "$name" "$clear" "$s_status" "$s_code" "$s_seconds" "$s_log" "$s_reason"
        keep_step "$kind" "$place"
        case $s_status in
        passed | skipped) ;;
        timed-out) fail_task timed-out "$kind $name: $s_reason" || return ;;
        *) fail_task failed "$kind $name: $s_reason" || return ;;
        esac
        place=$((place + 1))
    done
}

keep_step() { # setup|verify PLACE
    if [ "$1" = setup ]; then r_setup[$2]=$answer; else r_verify[$2]=$answer; fi
}

# Sets `head`, `branch` and `entries`, the lines of what is uncommitted, of a worktree.
look() { # NUMBER [PATHSPEC...]
    local out line tree=${x_worktree[$1]} IFS=$newline
    shift
    if [ ! -d "$tree" ]; then
        fail_task failed "the worktree cannot be read: the folder '$tree' is not there"
        return
    fi
    set -- -c core.quotePath=true status --porcelain=v2 --branch --no-renames --untracked-files=all \
        --ignore-submodules=none -- "$@"
    # What git says on stderr is no file.
    if ! out=$(become_git "$tree" "$@" 2>/dev/null); then
        fail_task failed "the worktree cannot be read: $(become_git "$tree" "$@" 2>&1 >/dev/null)"
        return
    fi
    head='' branch=''
    set --
    local found=()
    for line in $out; do
        case $line in
        '# branch.oid '*) head=${line#'# branch.oid '} ;;
        '# branch.head '*) branch=${line#'# branch.head '} ;;
        [1u\?]' '*) found+=("$line") ;;
        esac
    done
    entries="${found[*]-}"
}

# Answers the path of a line of `git status`, as git writes it.
path_of() { # LINE
    case $1 in
    '1 '*) answer=${1#* * * * * * * * } ;;
    'u '*) answer=${1#* * * * * * * * * * } ;;
    *) answer=${1#* } ;;
    esac
}

# Answers a path that git may have quoted.
unquoted() { # PATH
    answer=$1
    case $1 in
    \"*)
        answer=${1#\"}
        answer=${answer%\"}
        answer=${answer//%/%%}
        # shellcheck disable=SC2059 # git's escapes are those of a format
        printf -v answer -- "$answer"
        ;;
    esac
}

# Sets `left` to what the agent left uncommitted: what set-up left does not count as long as it
# stayed as it was.
find_left() { # NUMBER STAMP
    local line IFS=$newline
    left=()
    for line in $entries; do
        path_of "$line"
        unquoted "$answer"
        case $was_there in
        *"$newline$line$newline"*)
            [ ! "$2" -nt "${x_worktree[$1]}/$answer" ] || continue
            ;;
        esac
        left+=("$answer")
    done
}

# Sets `names` to the files that differ between a task's base and its head.
names_changed() { # NUMBER PATHSPEC...
    local out line tree=${x_worktree[$1]} base=${x_base[$1]} IFS=$newline
    shift
    names=()
    set -- -c core.quotePath=true diff --name-only --no-renames --no-ext-diff \
        --ignore-submodules=none "$base" "$r_head" -- "$@"
    if ! out=$(become_git "$tree" "$@" 2>/dev/null); then
        fail_task failed "git diff failed: $(become_git "$tree" "$@" 2>&1 >/dev/null)"
        return
    fi
    for line in $out; do
        unquoted "$line"
        names+=("$answer")
    done
}

# Sets `sorted` to paths as JSON strings, each once.
sort_paths() { # PATH...
    local path line out
    sorted=()
    for path; do
        json_string "$path"
        sorted+=("$answer")
    done
    ((${#sorted[@]} > 1)) || return 0
    out=$(printf '%s\n' "${sorted[@]}" | LC_ALL=C sort -u)
    sorted=()
    local IFS=$newline
    for line in $out; do sorted+=("$line"); done
}

# Records what the agent changed, commits what it left if the plan says so.
collect() { # NUMBER STAMP
    local out id path start allowed=() committed=() outside=() patterns=()
    look "$1" || return
    find_left "$@"
    kill -0 "$$" 2>/dev/null || exit 1
    if ((${#left[@]} && a_commit_leftovers)) && [ "$branch" = "${x_branch[$1]}" ]; then
        for id in add commit; do
            if [ "$id" = add ]; then set -- "$1" "$2" add --all; else
                set -- "$1" "$2" commit --quiet -m "$this_task: work that the agent left uncommitted"
            fi
            if ! out=$(
                umask "$caller_umask"
                trap - USR1
                printf '%s\0' "${left[@]}" | git -c core.fsmonitor=false -c gc.auto=0 -c maintenance.auto=false \
                    -c core.hooksPath=/dev/null -C "${x_worktree[$1]}" --literal-pathspecs "${@:3}" \
                    --pathspec-from-file=- --pathspec-file-nul 2>&1 3>&- 5>&-
            ); then
                fail_task failed "what the agent left could not be committed: $out"
                return
            fi
        done
        look "$1" || return
        find_left "$1" "$2"
    fi
    r_head=$head
    if [ -n "$head" ] && [ "$head" != "${x_base[$1]}" ]; then
        names_changed "$1" . || return
        committed=(${names[@]+"${names[@]}"})
    fi
    sort_paths ${left[@]+"${left[@]}"}
    r_left=(${sorted[@]+"${sorted[@]}"})
    ((!${#committed[@]})) || sort_paths "${committed[@]}" ${left[@]+"${left[@]}"}
    r_files=(${sorted[@]+"${sorted[@]}"})
    if [ "$t_owns" != - ] && ((${#r_files[@]})); then
        out=$head path=$branch
        find_owned
        for ((start = -1; start < ${#patterns[@]}; start++)); do
            find_not_owned "$start" || continue
            if ((${#r_left[@]})); then
                look "$1" "${allowed[@]}" || return
                find_left "$1" "$2"
                outside+=(${left[@]+"${left[@]}"})
            fi
            if ((${#committed[@]})); then
                names_changed "$1" "${allowed[@]}" || return
                outside+=(${names[@]+"${names[@]}"})
            fi
        done
        sort_paths ${outside[@]+"${outside[@]}"}
        r_outside=(${sorted[@]+"${sorted[@]}"})
        head=$out branch=$path
    fi
    [ "$branch" = "${x_branch[$1]}" ] ||
        fail_task failed "the worktree is not on its branch ${x_branch[$1]} any more" || return
    [ "$head" = "${x_base[$1]}" ] ||
        out=$(become_git "${x_worktree[$1]}" merge-base --is-ancestor "${x_base[$1]}" "$head" 2>/dev/null) ||
        fail_task failed "its base ${x_base[$1]} is no longer part of the branch"
}

# Sets `patterns` to what a task may change. A value never makes one that takes back.
find_owned() {
    local id
    patterns=()
    listed "$t_owns"
    for id in $answer; do
        fill "$id"
        case ${text[id]} in '!'*) ;; *) answer=${answer/#!/$backslash!} ;; esac
        patterns+=("$answer")
    done
}

# Sets `allowed` to what git calls that which no pattern gives (-1), or that which a row of patterns
# from START on takes back and none after them gives again; fails where no such row starts.
find_not_owned() { # START
    local place=$1 taken=0
    allowed=(':(top)')
    if (($1 >= 0)); then
        case ${patterns[$1]} in '!'*) ;; *) return 1 ;; esac
        if (($1)); then
            case ${patterns[$1 - 1]} in '!'*) return 1 ;; esac
        fi
        allowed=() taken=1
    else
        place=0
    fi
    for (( ; place < ${#patterns[@]}; place++)); do
        case ${patterns[place]} in
        '!'*) ((!taken)) || call ':(top,glob)' "${patterns[place]#!}" ;;
        *) taken=0; call ':(top,exclude,glob)' "${patterns[place]}" ;;
        esac
    done
    if [ "$t_changelog" != - ]; then
        fill "$t_changelog"
        allowed+=(":(top,exclude,literal)$answer")
    fi
}

# Adds to `allowed` the words by which git finds what a pattern gives: also with the brackets of its
# first parts as plain letters, since git takes these for a folder's own name in some of its commands
# and not in others.
call() { # MAGIC PATTERN
    local part front='' rest=$2 bracket='['
    allowed+=("$1$2")
    while [ "$rest" != "${rest#*/}" ]; do
        part=${rest%%/*} rest=${rest#*/}
        case $part in *[*?\\]*) return ;; esac
        front+=$part
        case $part in *"$bracket"*) allowed+=("$1${front//"$bracket"/$backslash$bracket}/$rest") ;; esac
        front+=/
    done
}

# Decides what an agent's work is worth: changes, scope, changelog, verify.
judge() { # NUMBER FOLDER
    local changed=1 reason='' path listed_paths=''
    ((${#r_files[@]})) || [ "$r_head" != "${x_base[$1]}" ] || changed=0
    if ((!changed && !a_allow_no_change)); then
        ((!a_zero_without_work)) || reason=" (it is known to, where it may not write)"
        fail_task no-change "the agent ended with exit code 0 and changed nothing$reason"
        return
    fi
    if ((${#r_outside[@]})); then
        for path in "${r_outside[@]:0:5}"; do
            json_text "$path"
            listed_paths+="${listed_paths:+, }$answer"
        done
        reason="changes outside of what it owns: $listed_paths"
    fi
    if [ "$t_changelog" != - ] && ((changed)); then
        fill "$t_changelog"
        has_entry "$1" "$answer" || reason=${reason:-"no changelog entry at $answer"}
    fi
    run_task_steps "$1" "$2" verify || reason=${reason:-$r_reason}
    [ -z "$reason" ] || fail_task "${r_status/#running/failed}" "$reason" || return
    r_status=passed
    ((changed)) || r_status=no-change
}

# Whether a task's changelog entry is where it is expected.
has_entry() { # NUMBER PATH
    local entry
    [ -f "${x_worktree[$1]}/$2" ] && [ -s "${x_worktree[$1]}/$2" ] || return 1
    json_string "$2"
    for entry in ${r_files[@]+"${r_files[@]}"}; do
        if [ "$entry" = "$answer" ]; then
            answer=$2
            return 0
        fi
    done
    answer=$2
    ! git_plain -C "${x_worktree[$1]}" cat-file -e "${x_base[$1]}:$2" 2>/dev/null
}

# Prepares the order of tasks: `ready` are those that wait for none.
order_tasks() {
    local number other
    waiting=() dependants=() ready=() next_ready=0
    if are_none ${x_after[@]+"${x_after[@]}"} ${x_behind[@]+"${x_behind[@]}"}; then
        ready=(${x_row[@]+"${!x_row[@]}"})
        return
    fi
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ -n "${x_after[number]}${x_behind[number]}" ] || { ready+=("$number") && continue; }
        waiting[number]=0
        for other in ${x_after[number]} ${x_behind[number]}; do
            waiting[number]=$((waiting[number] + 1))
            dependants[other]="${dependants[other]-} $number"
        done
        ((waiting[number])) || ready+=("$number")
    done
}

# Makes ready what has waited for a task, each at its place in the plan's order.
release() { # NUMBER
    local other place
    for other in ${dependants[$1]-}; do
        waiting[other]=$((waiting[other] - 1))
        ((!waiting[other])) || continue
        for ((place = ${#ready[@]}; place > next_ready && ready[place - 1] > other; place--)); do
            ready[place]=${ready[place - 1]}
        done
        ready[place]=$other
    done
}

# Runs all tasks that may run, so many at once, each after what it depends on.
run_tasks() {
    local number
    order_tasks
    running=0 no_more=''
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        if [ "$plan_on_failure" != stop ] || are_all not-started "${x_status[@]}"; then break; fi
        [ "${x_status[number]}" != not-started ] || continue
        if stands "$number" && ! is_well "$number"; then
            is_in_rerun "$number" || no_more='an earlier task failed'
        fi
    done
    in_tasks=1
    while ((next_ready < ${#ready[@]} || running)); do
        while ((next_ready < ${#ready[@]} && running < max_parallel)); do
            number=${ready[next_ready]}
            next_ready=$((next_ready + 1))
            if [ -n "$interrupted" ] || [ -n "$trouble" ]; then no_more='the run was stopped'; fi
            if is_to_be_run "$number"; then
                if ((!has_run)); then
                    # A postflight that passed before this is worth nothing any more.
                    use_no_task
                    new_list "$plan_postflight"
                    postflight_json=(${h_json[@]+"${h_json[@]}"})
                fi
                say "${x_name[number]}" started
                begin_task "$number"
            else
                release "$number"
            fi
        done
        if ((running)); then
            ((!dirty)) || save_manifest_soon
            turn
            if [ -n "$trouble" ] && [ -n "$live_jobs" ]; then stop_jobs; fi
            [ -n "$live_jobs" ] || running=0
        fi
    done
    in_tasks=0
    clear_screen
}

begin_task() { # NUMBER
    local folder=$run_dir/tasks/${x_name[$1]}
    running=$((running + 1)) has_run=1
    make_folders "$1"
    start_record "$1"
    stamp
    r_status=running r_started=$answer
    ((!x_agent_started[$1])) || r_agent_started=true
    make_record
    [ -z "$blank_rows" ] || some_blank=1
    x_status[$1]=running x_began[$1]=$now
    as_row "$answer"
    x_json[$1]=$answer
    dirty=1
    # A job lives on when its coordinator is killed: a run that goes on ends it by this.
    { printf '%s\n' "$r_started" >"$folder/.job"; } 2>/dev/null
    start_job "$1" task_job "$1"
    process_start "${job_pid[last_job]}"
    { printf '%s\n%s\n' "${job_pid[last_job]}" "$answer" >>"$folder/.job"; } 2>/dev/null
}

# Whether a task's record stands: it is well, or its agent is not started again unasked.
stands() { # NUMBER
    is_well "$1" && return 0
    ((x_agent_started[$1])) || return 1
    [ "${x_status[$1]}" = interrupted ] || return 0
    use_task "$1"
    ((!a_rerun_interrupted)) || return 1
    agent_end "$1"
    [ -z "$answer" ]
}

# Whether a task is started now; if not, its record says why, or stands as it was.
is_to_be_run() { # NUMBER
    if ((!x_chosen[$1])); then
        if [ ! -e "$run_dir/tasks/${x_name[$1]}/result.json" ]; then
            start_record "$1"
            r_status=skipped r_reason='left out by ONLY'
            make_record
            put_result "$1" "$answer"
        fi
        return 1
    fi
    if ! is_in_rerun "$1" && stands "$1"; then return 1; fi
    find_unwell "$1"
    answer=${answer:-$no_more}
    [ -n "$answer" ] || return 0
    [ "${x_status[$1]}" = not-started ] || return 1
    x_reason[$1]=$answer x_json[$1]='' some_blank=1
    return 1
}

# Takes up how a task ended.
task_over() { # NUMBER done|lost|unwritten
    running=$((running - 1))
    if [ "$2" = "done" ]; then
        read_result "$1"
    elif [ "$2" = lost ]; then
        end_tree "AGENT_WORKERS_RUN=$run_dir/tasks/${x_name[$1]}" exact
        read_result "$1"
        start_record "$1"
        r_status=failed r_reason='the process that ran it was killed'
        r_agent_started=false
        ((!x_agent_started[$1])) || r_agent_started=true
        make_record
        put_result "$1" "$answer"
    else
        write_error=$2
        x_status[$1]=failed x_reason[$1]="its record cannot be written: $2"
        x_json[$1]='' some_blank=1
        records_failed "$run_dir/tasks/${x_name[$1]}"
    fi
    say "${x_name[$1]}" "${x_status[$1]}" "${x_reason[$1]}"
    [ "$plan_on_failure" != stop ] || is_well_or_left_out "$1" || no_more='an earlier task failed'
    dirty=1
    ((!whole)) || release "$1"
}

# --- Finish ---------------------------------------------------------------------------------

# The end of a run, whatever came before.
finish_run() {
    local number well=1 word=error merge=$1 reason
    end_tree "AGENT_WORKERS_RUN=$run_dir/" prefix ||
        run_event error run - "{\"reason\": \"processes could not be ended: $answer\"}"
    use_no_task
    [ "$gate_status" = passed ] || well=0
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${x_status[number]}" != not-started ] || explain "$number"
        is_well_or_left_out "$number" || well=0
    done
    use_no_task
    run_postflight "$well" || well=0
    choose_verdict "$well"
    stamp
    run_ended=$answer
    ((!merge)) || merge_events
    forget_notes
    case $run_status in passed) word=completed ;; interrupted) word=stopped ;; esac
    json_optional "$gate_reason"
    reason=$answer
    run_event "$word" run - "{\"status\": \"$run_status\", \"reason\": $reason}"
    save_manifest
    case $run_status$gate_status in
    failedpassed | interruptedpassed) write_rollback ;;
    # That of an earlier try: there is nothing to take back any more.
    passed*) [ ! -e "$run_dir/rollback.sh" ] || rm -f -- "$run_dir/rollback.sh" ;;
    esac
    write_report
    if [ -n "$trouble" ] && [ "$run_code" != 1 ] && [ -z "$interrupted" ]; then
        run_status=failed run_code=1
        save_manifest
    fi
}

# Says why a task was not started.
explain() { # NUMBER
    if [ -z "${x_reason[$1]}" ]; then
        find_unwell "$1"
        x_reason[$1]=${answer:-the run ended before it}
    fi
    x_json[$1]='' some_blank=1
    json_string "${x_reason[$1]}"
    clock
    make_event "$now" cancelled task "${x_name[$1]}" - "{\"status\": \"not-started\", \"reason\": $answer}"
    put_event "$answer"
}

run_postflight() { # WELL
    local number
    # A task that ran since then makes a postflight that passed worthless.
    for ((number = 0; number < ${#x_row[@]} && !has_run; number++)); do
        [ -n "$finished_at" ] && [ -n "${x_json[number]}" ] || continue
        json_get "${x_json[number]//"$newline  "/$newline}" ended_at
        [[ $answer > $finished_at ]] && has_run=1
    done
    ((!has_run)) || postflight_json=()
    kept_list "$plan_postflight" '' ${postflight_json[@]+"${postflight_json[@]}"}
    postflight_json=(${h_json[@]+"${h_json[@]}"})
    (($1)) && [ -z "$interrupted$trouble" ] || return 1
    run_list "$plan_postflight" postflight postflight save_postflight
}

# Sets the run's status and exit code.
choose_verdict() { # WELL
    case $interrupted in
    INT) run_code=130 ;;
    TERM) run_code=143 ;;
    HUP) run_code=129 ;;
    QUIT) run_code=131 ;;
    esac
    if [ -n "$interrupted" ]; then
        run_status=interrupted
        return
    fi
    run_status=failed run_code=1
    [ -z "$trouble" ] || return 0
    if [ "$gate_status" = gate-refused ]; then
        run_status=gate-refused run_code=3
        return
    fi
    if (($1)); then run_status=passed run_code=0; fi
}

# Brings into the run's log what tasks logged that ran in processes of their own.
merge_events() {
    local number files=("$run_dir/events.jsonl") made
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        made=$run_dir/tasks/${x_name[number]}/events.jsonl
        [ ! -e "$made" ] || files+=("$made")
    done
    made=$run_dir/.events
    if cat -- "${files[@]}" | LC_ALL=C sed -n 's/^{"schema": 1, "seq": [0-9]*, \("at": .*}\)$/\1/p' |
        awk '!seen[$0]++' | LC_ALL=C sort -s -t '"' -k 4,4 |
        awk '{ printf "{\"schema\": 1, \"seq\": %d, %s\n", NR, $0 }' >"$made"; then
        exec 4>&-
        mv -f -- "$made" "$run_dir/events.jsonl"
        open_events
    else
        records_failed "$made"
    fi
}

# Writes the plan's rollback commands as a script that a person may run.
write_rollback() {
    local made number id name place line shown pad
    [ "$plan_rollback" != - ] || return 0
    made="#!/usr/bin/env bash$newline# Recorded, not run: how the plan takes the run back.$newline"
    made+="# shellcheck disable=SC2016,SC1003 # commands are data, quoted as one word$newline"
    made+="# Run $run_id: $run_status.$newline"
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        made+="#   ${x_name[number]}: ${x_status[number]}$newline"
    done
    use_no_task
    quote_word "$root"
    made+="set -eu${newline}unset CDPATH${newline}cd -- $answer$newline"
    made+="# A condition that cannot be decided ends the script.$newline"
    # shellcheck disable=SC2016 # another script's
    made+='holds() {
  local code=0
  "$@" || code=$?
  if [ $code -gt 125 ]; then
    printf '"'cannot be decided: %s\\n'"' "$*" >&2
    exit 1
  fi
  return $code
}
'
    for ((place = 0; place < ${#variable_name[@]}; place++)); do
        quote_word "${variable_value[place]}"
        made+="export PLAN_${variable_name[place]}=$answer$newline"
    done
    for name in RUN_ID RUN_DIR REPO_ROOT; do
        lookup "$name"
        quote_word "$value"
        made+="export $name=$answer$newline"
    done
    listed "$plan_rollback"
    for id in $answer; do
        command_clear "$id"
        visible "rollback $c_name: $answer"
        quote_word "$answer"
        shown="printf '%s\\n' $answer"
        place=$c_when pad=''
        command_argv "$id"
        quote_words "${argv[@]}"
        line=$answer
        made+=$newline
        if [ "$place" != - ]; then
            condition_in_bash "$place"
            made+="if $answer; then$newline"
            pad='  '
        fi
        made+="$pad$shown$newline$pad$line$newline"
        [ -z "$pad" ] || made+="fi$newline"
    done
    write_file "$run_dir/rollback.sh" "$made" 700 || records_failed "$run_dir/rollback.sh"
}

# Answers a condition for the rollback script: commands stay commands, all else is decided now.
condition_in_bash() { # CONDITION
    local kind part made='' joint=' && '
    # shellcheck disable=SC2086 # words without blanks
    set -- ${condition[$1]}
    kind=$1
    shift
    case $kind in
    command)
        command_argv "$1"
        quote_words "${argv[@]}"
        answer="holds $answer"
        ;;
    all | any)
        [ "$kind" = all ] || joint=' || '
        for part; do
            condition_in_bash "$part"
            made+="${made:+$joint}$answer"
        done
        answer="{ $made; }"
        ;;
    not)
        condition_in_bash "$1"
        answer="! { $answer; }"
        ;;
    *)
        verdict=1
        if [ "$kind" = backup ]; then
            case " $passed_backups " in *" $1 "*) verdict=0 ;; esac
        else
            plain_verdict "$kind" "$@"
        fi
        answer=false
        ((verdict)) || answer=true
        ;;
    esac
}

# Sets `next_titles` and `next_blocks`: what a person does next, as commands to paste.
next_commands() {
    local number review='' commit='' merge='' clean='' at_root tree name logs=''
    local where approve='' good='' lacking='' head before behind resume_title
    # shellcheck disable=SC2016 # for the reader's shell
    local program='python3 "$SKILL_DIR/scripts/integrate_workers.py"'
    next_titles=() next_blocks=() again=''
    quote_word "$root"
    at_root="git -C $answer" where="--repo $answer"
    quote_word "$run_dir"
    where+=" --run $answer"
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        if stands "$number" && ! is_well "$number"; then
            again+="${again:+,}${x_name[number]}"
        fi
        [ "${x_status[number]}" != not-started ] && [ -d "${x_worktree[number]}" ] || continue
        quote_word "${x_worktree[number]}"
        tree=$answer
        quote_word "${x_branch[number]}"
        name=$answer
        review+="${review:+$newline}git -C $tree status --short$newline"
        review+="git -C $tree log --oneline ${x_base[number]}..HEAD$newline"
        review+="git -C $tree diff ${x_base[number]}"
        if [ "${x_status[number]}" = passed ] && ((x_left[number])); then
            commit+="${commit:+$newline}git -C $tree add --all$newline"
            commit+="git -C $tree commit -m ${x_name[number]}"
        fi
        if [ "${x_status[number]}" = passed ]; then
            good+="${good:+ }${x_name[number]}"
            [ "${task_changelog[x_row[number]]}" != - ] ||
                lacking='. A task without a changelog entry needs --no-changelog-needed NAME=REASON'
            cut "${x_json[number]}" '"head": "'
            head=${behind%%\"*}
            ((!x_left[number])) || head="\"\$(git -C $tree rev-parse HEAD)\""
            approve+="$program review ${x_name[number]} $where$newline"
            approve+="$program approve ${x_name[number]} --commit $head $where$newline"
            merge+="${merge:+$newline}$at_root merge --no-ff $name"
            clean+="${clean:+$newline}$at_root worktree remove $tree$newline$at_root branch -d $name"
        fi
    done
    add_next Review "$review"
    add_next "Commit what agents left uncommitted" "$commit"
    [ -z "$good" ] ||
        add_next "Merge what was reviewed, with the skill's scripts; SKILL_DIR is the skill's folder$lacking" \
            "$program forecast $good $where$newline$approve$program merge $good $where"
    add_next "Merge without the skill, which checks nothing" "$merge"
    case $run_status in
    passed | running) ;;
    *)
        if [ -n "$log_root" ]; then
            quote_word "$runs"
            logs="LOG_ROOT=$answer "
        fi
        quote_word "$PWD"
        tree=$answer
        absolute "$0" "$PWD"
        quote_word "$answer"
        case $gate_status:${#variable_name[@]} in
        passed:* | *:0) resume_title=Resume ;;
        *) resume_title='Resume; a value that was wrong is given beside it, as PLAN_NAME=VALUE' ;;
        esac
        add_next "$resume_title" "cd $tree && RESUME=1 RUN_ID=$run_id $logs$answer"
        add_next "Start agents again, after a look at their worktrees" \
            "${again:+cd $tree && RESUME=1 RERUN=$again RUN_ID=$run_id $logs$answer}"
        ;;
    esac
    add_next "Clean up what was merged; ignored files in a worktree go with it without a word" "$clean"
}

add_next() { # TITLE COMMANDS
    [ -n "$2" ] || return 0
    next_titles+=("$1")
    next_blocks+=("$2")
}

# Sets `logs` to where the logs are of steps and agents that did not end well.
find_failed_logs() {
    local number record who
    logs=''
    add_step_logs preflight ${preflight_json[@]+"${preflight_json[@]}"}
    add_step_logs backups ${backup_json[@]+"${backup_json[@]}"}
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        case ${x_status[number]} in failed | timed-out | interrupted) ;; *) continue ;; esac
        record=${x_json[number]//"$newline  "/$newline} who="task ${x_name[number]}"
        read_list "$record" setup
        # shellcheck disable=SC2090 # records
        add_step_logs "$who, setup" ${h_json[@]+"${h_json[@]}"}
        json_get "$record" log
        add_log "$who, agent" "${x_status[number]}" "$answer"
        read_list "$record" verify
        # shellcheck disable=SC2090 # records
        add_step_logs "$who, verify" ${h_json[@]+"${h_json[@]}"}
    done
    add_step_logs postflight ${postflight_json[@]+"${postflight_json[@]}"}
}

add_step_logs() { # WHAT STEP...
    local what=$1 step name='' status='' log=''
    shift
    for step; do
        get_all "$step" name name status status log log
        add_log "$what $name" "$status" "$log"
    done
}

add_log() { # WHAT STATUS LOG
    case $2 in failed | timed-out | interrupted) ;; *) return ;; esac
    [ -z "$3" ] || [ ! -e "$run_dir/$3" ] || logs+="- $1: $run_dir/$3$newline"
}

write_report() {
    local made number reason place logs
    made="# Run $run_id: $run_status$newline$newline"
    [ -z "$gate_reason" ] || made+="The gate refused: $gate_reason$newline$newline"
    made+="| task | status | branch | files | why |$newline|---|---|---|---|---|$newline"
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        reason=${x_reason[number]//|/$backslash|}
        made+="| ${x_name[number]} | ${x_status[number]} | ${x_branch[number]} | ${x_files[number]} | ${reason//"$newline"/ } |$newline"
    done
    find_failed_logs
    [ -z "$logs" ] || made+="$newline## Logs of what failed$newline$newline$logs"
    next_commands
    for ((place = 0; place < ${#next_titles[@]}; place++)); do
        made+="$newline## ${next_titles[place]}$newline$newline\`\`\`bash$newline${next_blocks[place]}$newline\`\`\`$newline"
    done
    write_file "$run_dir/REPORT.md" "$made" || records_failed "$run_dir/REPORT.md"
}

# --- What is printed ------------------------------------------------------------------------

# Progress on a terminal: one line a running task that updates.
screen_rows=0
clear_screen() {
    ((screen_rows)) || return 0
    printf '\033[%dA\033[J' "$screen_rows" >&2
    screen_rows=0
}

show_progress() {
    local job number row rows='' count=0
    ((is_terminal)) || return 0
    for job in $live_jobs; do
        number=${job_task[job]}
        [ "$number" != - ] || continue
        use_task "$number"
        fill "$a_log_name"
        last_line "$run_dir/tasks/${x_name[number]}/$answer"
        printf -v row '%-24s %-10s %5d s  %s' "${x_name[number]}" "${x_status[number]}" \
            $(((now - x_began[number]) / 1000000)) "$answer"
        rows+=${row:0:columns - 1}$newline
        count=$((count + 1))
    done
    clear_screen
    printf '%s' "$rows" >&2
    screen_rows=$count
}

look_at_terminal() {
    local size
    is_terminal=0 columns=80
    [ -t 2 ] || return 0
    is_terminal=1
    size=$(stty size <&2 2>/dev/null) || return 0
    ((${size#* } < 20)) || columns=${size#* }
}

# Prints the tasks and how they went.
print_table() {
    local number row first=4 second=6 third=7 fourth=5 seconds rows=() line
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        printf -v seconds '%.1f' "${x_seconds[number]}"
        ((${#x_name[number]} <= first)) || first=${#x_name[number]}
        ((${#x_status[number]} <= second)) || second=${#x_status[number]}
        ((${#seconds} <= third)) || third=${#seconds}
        rows[number]=$seconds
    done
    printf 'run %s: %s\n' "$run_id" "$run_status"
    [ -z "$gate_reason" ] || printf 'the gate refused: %s\n' "$gate_reason"
    printf '%-*s  %-*s  %-*s  %-*s  why\n' "$first" task "$second" status "$third" seconds "$fourth" files
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        printf -v line '%-*s  %-*s  %-*s  %-*s  %s' "$first" "${x_name[number]}" "$second" "${x_status[number]}" \
            "$third" "${rows[number]}" "$fourth" "${x_files[number]}" "${x_reason[number]}"
        while [ "$line" != "${line% }" ]; do line=${line% }; done
        printf '%s\n' "$line"
    done
}

# Prints how the run went, and what the report says to do next.
print_summary() {
    local place title
    print_table
    printf 'report: %s\n' "$run_dir/REPORT.md"
    for ((place = 0; place < ${#next_titles[@]}; place++)); do
        case ${next_titles[place]} in
        R*) title=r${next_titles[place]#R} ;;
        M*) title=m${next_titles[place]#M} ;;
        S*) title=s${next_titles[place]#S} ;;
        *) title=c${next_titles[place]#C} ;;
        esac
        printf 'next: %s\n      %s\n' "$title" "${next_blocks[place]%%"$newline"*}"
    done
}

# Prints one command with what belongs to it.
print_step() { # INDENT LABEL COMMAND
    local name when artifact check
    command_clear "$3"
    name=$c_name when=$c_when artifact=$c_artifact check=$c_check
    printf '%s%s%s: %s\n' "$1" "$2" "$name" "${answer//"$newline"/$newline        }"
    [ "$when" = - ] || print_when "$1  " "$when"
    if [ "$artifact" != - ]; then
        fill "$artifact"
        printf '%s  artifact %s\n' "$1" "$answer"
    fi
    if [ "$check" != - ]; then
        command_clear "$check"
        printf '%s  check: %s\n' "$1" "${answer//"$newline"/$newline        }"
    fi
}

print_when() { # INDENT CONDITION
    local words=(true false "unknown (not run)")
    foresee "$2"
    condition_text "$2"
    printf '%swhen %s = %s\n' "$1" "$answer" "${words[verdict]}"
}

# Answers a condition in words.
condition_text() { # CONDITION
    local kind part made=''
    # shellcheck disable=SC2086 # words without blanks
    set -- ${condition[$1]}
    kind=$1
    shift
    case $kind in
    command)
        command_clear "$1"
        answer="\`$answer\`"
        ;;
    env)
        part="env $1"
        if (($# == 2)); then
            fill "$2"
            quote_word "$answer"
            part+=" = $answer"
        fi
        answer=$part
        ;;
    path)
        fill "$1"
        answer="path $answer"
        ;;
    backup) answer="backup $1 passed" ;;
    *)
        for part; do
            condition_text "$part"
            made+="${made:+; }$answer"
        done
        answer="$kind($made)"
        ;;
    esac
}

# Decides a condition as far as that is known without running anything: `verdict` 2 is unknown.
foresee() { # CONDITION
    local kind part worst
    # shellcheck disable=SC2086 # words without blanks
    set -- ${condition[$1]}
    kind=$1
    shift
    case $kind in
    command | backup) verdict=2 ;;
    not)
        foresee "$1"
        ((verdict == 2)) || verdict=$((1 - verdict))
        ;;
    all | any)
        worst=0
        [ "$kind" = all ] || worst=1
        for part; do
            foresee "$part"
            [ "$kind$verdict" != all1 ] && [ "$kind$verdict" != any0 ] || return 0
            ((verdict != 2)) || worst=2
        done
        verdict=$worst
        ;;
    *) plain_verdict "$kind" "$@" ;;
    esac
}

print_list() { # TITLE LIST [KEPT]
    local id
    [ "$2" != - ] || return 0
    printf '%s\n' "$1"
    listed "$2"
    for id in $answer; do
        take_command "$id"
        case ${3-} in *" $c_name "*) printf '  %s: passed already\n' "$c_name" && continue ;; esac
        print_step '  ' '' "$id"
    done
}

# Prints one task, in the order in which its parts run.
print_task() { # NUMBER
    local number=$1 made='' id
    use_task "$number"
    printf 'task %s' "${x_name[number]}"
    if ((!item_known)); then
        case $t_each in
        file:*)
            fill "${t_each#file:}"
            printf ' for each line of %s (not there)' "$answer"
            ;;
        run:*)
            command_clear "${t_each#run:}"
            printf ' for each line printed by %s (not run)' "$answer"
            ;;
        esac
    fi
    printf '\n'
    if ((!x_chosen[number])); then
        printf '  left out by ONLY\n'
        return
    fi
    if [ -n "${not_run[number]-}" ]; then
        printf '  %s\n' "${not_run[number]}"
        return
    fi
    for id in ${x_after[number]}; do made+="${made:+, }${x_name[id]}"; done
    [ -z "$made" ] || printf '  after %s\n' "$made"
    made=''
    for id in ${x_behind[number]}; do made+="${made:+, }${x_name[id]}"; done
    [ -z "$made" ] || printf '  not beside %s: they may change the same file\n' "$made"
    if ((!item_known)); then
        made=''
        case ",${task_order[x_row[number]]-}," in
        *",${x_row[number]}:plain,"*) made=' unless the items are plain words' ;;
        *",${x_row[number]}:all,"*) ;;
        *) made=- ;;
        esac
        [ "$made" = - ] || printf '  one item after another%s: they may change the same file\n' "$made"
        made=''
    fi
    [ "$t_when" = - ] || print_when '  ' "$t_when"
    fill "$t_base"
    printf '  branch %s%s\n  worktree %s\n' "${x_branch[number]}" "${answer:+ from $answer}" "${x_worktree[number]}"
    listed "$t_setup"
    for id in $answer; do print_step '  ' 'setup ' "$id"; done
    print_prompt
    agent_argv "$number" PROMPT PROMPT_FILE
    # The program stands as the plan says, not as it is found.
    fill "$a_cli"
    argv[0]=$answer
    quote_words "${argv[@]}"
    [ "$a_prompt_mode" != stdin ] || answer+=" < PROMPT"
    printf '  agent: %s\n  timeout %s s\n' "$answer" "$a_limit"
    made=''
    listed "$t_owns"
    for id in $answer; do
        fill "$id"
        made+="${made:+, }$answer"
    done
    [ -z "$made" ] || printf '  owns %s\n' "$made"
    if [ "$t_changelog" != - ]; then
        fill "$t_changelog"
        printf '  changelog %s\n' "$answer"
    fi
    listed "$t_verify"
    for id in $answer; do print_step '  ' 'verify ' "$id"; done
}

# Prints where a task's prompt is written to, how long it is, and its first line.
print_prompt() {
    local prompt shown
    fill "$t_prompt"
    prompt=$answer
    shown=${prompt%%"$newline"*}
    if ((${#shown} > 200)); then
        shown=${shown:0:200}
        # No part of a character.
        while [[ $shown = *[$'\200'-$'\277'] ]]; do shown=${shown%?}; done
        shown=${shown%[$'\300'-$'\377']}...
    fi
    printf -v shown '  prompt tasks/%s/prompt.md, %d bytes: %s' "${x_name[number]}" ${#prompt} \
        "${shown//[[:cntrl:]]/ }"
    while [ "$shown" != "${shown% }" ]; do shown=${shown% }; done
    printf '%s\n' "$shown"
}

# Sets `not_run` to why tasks of a run that goes on are not run, and kept_preflight and kept_backups
# to the names of the steps that are not.
find_not_run() {
    local number other why lost over=0 failed=''
    find_lost
    [ "$gate_status" != passed ] || [ -n "$lost" ] || over=1
    kept_list "$plan_preflight" '' ${preflight_json[@]+"${preflight_json[@]}"}
    kept_names "$over"
    kept_preflight=$answer
    kept_list "$plan_backups" "$lost" ${backup_json[@]+"${backup_json[@]}"}
    kept_names "$over"
    kept_backups=$answer
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${x_status[number]}" != running ] || x_status[number]=interrupted
        ((x_chosen[number])) || continue
        if is_in_rerun "$number" || ! stands "$number"; then continue; fi
        not_run[number]="${x_status[number]} already"
        is_well "$number" && continue
        failed+=" $number "
        not_run[number]="stays ${x_status[number]}; RERUN=${x_name[number]} runs it again"
    done
    order_tasks
    while ((next_ready < ${#ready[@]})); do
        number=${ready[next_ready]} why=''
        next_ready=$((next_ready + 1))
        release "$number"
        [ -z "${not_run[number]-}" ] || continue
        if [ -n "$failed" ] && [ "$plan_on_failure" = stop ]; then
            why='is not started: an earlier task failed'
        fi
        for other in ${x_after[number]}; do
            case "$failed ${not_run[other]-}" in
            *" $other "* | *" is not started"*)
                why=${why:-is not started: it depends on ${x_name[other]}}
                ;;
            esac
        done
        not_run[number]=$why
    done
}

# Answers the names of the steps of a list that are not run again, with blanks around each.
kept_names() { # ALL
    local place
    answer=' '
    for ((place = 0; place < ${#h_name[@]}; place++)); do
        if (($1)) || [ "${h_status[place]}" = passed ]; then answer+="${h_name[place]} "; fi
    done
}

print_dry_run() {
    local row path number fixed=0 kept_preflight='' kept_backups=''
    not_run=()
    if ((is_resumed)); then
        [ -d "$run_dir" ] ||
            die 2 "there is no run '$run_id' to go on with" "check RUN_ID and LOG_ROOT"
        load_run
        require_same_plan 0
        [ ! -e "$run_dir/plan.json" ] || fixed=1
    fi
    for ((row = 0; row < ${#task_name[@]} && !fixed; row++)); do
        take_row "$row"
        case $t_each in
        file:*)
            fill "${t_each#file:}"
            rooted "$answer"
            path=$answer
            [ -e "$path" ] || continue
            read_items "$row" "$t_each" || die 3 "$why"
            ;;
        esac
    done
    if ((!fixed)); then
        unknown_as_one=1
        expand || die 2 "$why"
        list_names
    fi
    is_dynamic=0
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        take_row "${x_row[number]}"
        case $t_each in run:* | file:*) ((x_has_item[number])) || is_dynamic=1 ;; esac
    done
    choose 0
    ((!is_resumed)) || find_not_run
    visible "$(print_all_steps)"
    printf '%s\nnothing was run and nothing was changed\n' "$answer"
}

print_all_steps() {
    local number
    use_no_task
    fill "$plan_base"
    printf 'run %s\nrepo %s\nbase %s\nworktrees %s\nat most %s at once\n' \
        "$run_id" "$root" "$answer" "$worktree_root" "$max_parallel"
    print_list preflight "$plan_preflight" "$kept_preflight"
    print_list backups "$plan_backups" "$kept_backups"
    order_tasks
    while ((next_ready < ${#ready[@]})); do
        number=${ready[next_ready]}
        next_ready=$((next_ready + 1))
        print_task "$number"
        release "$number"
    done
    use_no_task
    print_list postflight "$plan_postflight"
    print_list "rollback (recorded in rollback.sh if the run fails, never run)" "$plan_rollback"
}

# --- Phases ---------------------------------------------------------------------------------

phase_all() {
    whole=1
    prepare
    claim_run
    enter
    if run_gate; then
        choose 1
        [ -n "$interrupted$trouble" ] || run_tasks
        finish_run "$is_resumed"
        print_summary 2>/dev/null
    else
        local reason=$why advice=$hint
        finish_run 0
        print_summary 2>/dev/null
        put_error "$reason" "$advice"
    fi
    [ -z "$trouble" ] || put_error "$trouble" "free space, then go on with RESUME=1"
    leave "$run_code"
}

phase_gate() {
    whole=1
    prepare
    must_claim "run $run_id"
    enter
    if run_gate; then
        save_manifest
        printf 'run %s: the gate passed\n' "$run_id" 2>/dev/null
        leave 0
    fi
    choose_verdict 0
    stamp
    run_ended=$answer
    save_manifest
    put_error "$why" "$hint"
    leave "$run_code"
}

phase_task() { # NAME
    local name=$1 number other code=0 lost
    expand || die 2 "$why"
    list_names
    ((is_dynamic)) || require_task "$name"
    load_run
    require_same_plan 1
    [ "$gate_status" = passed ] ||
        die 3 "the gate of $run_id has not passed" "run the phase \`gate\` first"
    find_lost
    lost=${lost% }
    [ -z "$lost" ] ||
        die 3 "backups of $run_id are gone: ${lost// /, }" "run the phase \`gate\` with RESUME=1 first"
    require_task "$name"
    choose 1
    export_values
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        is_named "$number" "$name" || continue
        must_claim "task $run_id/${x_name[number]}" "branch ${x_branch[number]}"
        take_up "$number"
        if ! is_in_rerun "$number"; then
            if is_well "$number"; then
                printf '%s: %s already\n' "${x_name[number]}" "${x_status[number]}"
                continue
            fi
            ! stands "$number" ||
                die 3 "the agent of ${x_name[number]} had started already (${x_status[number]})" \
                    "RERUN=${x_name[number]} runs it again"
        fi
        find_unwell "$number"
        [ -z "$answer" ] || die 3 "${x_name[number]}${answer#it}"
        for other in ${x_behind[number]}; do
            ((x_chosen[other])) || continue
            case ${x_status[other]} in not-started | running) ;; *) continue ;; esac
            die 3 "${x_name[number]} comes after ${x_name[other]}, which is ${x_status[other]}: they may change the same file"
        done
        require_none_failed "$number"
        make_folder "$run_dir/tasks/${x_name[number]}"
        start_jobs "$run_dir/tasks/${x_name[number]}"
        say "${x_name[number]}" started
        running=0
        begin_task "$number"
        while [ -n "$live_jobs" ]; do turn; done
        forget_notes "$number"
        [ -z "$trouble" ] || die 1 "$trouble" "free space, then go on with RESUME=1"
        choose_verdict 0
        [ -z "$interrupted" ] || leave "$run_code"
        is_well_or_left_out "$number" || code=1
    done
    leave "$code"
}

# Ends the runner when another task has failed and the plan stops at failures.
require_none_failed() { # NUMBER
    local other
    [ "$plan_on_failure" = stop ] || return 0
    for ((other = 0; other < ${#x_row[@]}; other++)); do
        if [ "$other" = "$1" ] || ! stands "$other" || is_well "$other"; then continue; fi
        die 3 "an earlier task failed: ${x_name[other]} is ${x_status[other]}" \
            "run ${x_name[other]} again first; the plan's on_failure is stop"
    done
}

# Reads a task's record; what a dead runner left of it is ended and recorded.
take_up() { # NUMBER
    read_result "$1" || miss_record "$1"
    [ "${x_status[$1]}" = running ] || return 0
    find_unended "$1"
    end_old_jobs "$1"
    end_tree "AGENT_WORKERS_RUN=$run_dir/tasks/${x_name[$1]}" exact ||
        die 1 "processes of ${x_name[$1]} are still alive: $answer" "end them"
    forget_ends
    read_result "$1" || forget_record "$1"
    [ "${x_status[$1]}" != running ] || task_interrupted "$1" "the runner was killed"
}

require_task() { # NAME
    local number
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        ! is_named "$number" "$1" || return 0
    done
    die 2 "there is no task '$1' in this plan" "$known_names"
}

phase_finish() {
    whole=1
    must_claim "run $run_id"
    load_run
    require_same_plan 1
    export_values
    choose 1
    open_events
    interrupt_dead 1
    start_jobs "$run_dir"
    case $gate_status in '' | running) gate_status=interrupted ;; esac
    finish_run 1
    print_summary 2>/dev/null
    [ -z "$trouble" ] || put_error "$trouble" "free space, then go on with RESUME=1"
    leave "$run_code"
}

# Answers the name of the run that was written to last.
find_newest() {
    local name newest=''
    set +f
    for name in "$runs"/*/manifest.json; do
        if [ -f "$name" ] && { [ -z "$newest" ] || [ "$name" -nt "$newest" ]; }; then newest=$name; fi
    done
    set -f
    [ -n "$newest" ] || die 2 "there is no run in $runs" "give RUN_ID and LOG_ROOT"
    newest=${newest%/*}
    answer=${newest##*/}
}

# Tells of values in the environment for variables that the plan does not have.
note_unknown_values() {
    local word known="${variable_name[*]-}" listed_names
    case $newline$exported in *"${newline}PLAN_"?*) ;; *) return ;; esac
    listed_names=${known// /, }
    known=" $known "
    for word in $(compgen -e | LC_ALL=C sort); do
        case $word in PLAN_?*) ;; *) continue ;; esac
        case $known in *" ${word#PLAN_} "*) continue ;; esac
        printf 'note: %s is set, and the plan has no variable %s; it has: %s\n' \
            "$word" "${word#PLAN_}" "${listed_names:-none}" >&2
    done
}

phase_status() {
    local number stale=0
    if [ -z "$given_run_id" ]; then
        find_newest
        run_id=$answer run_dir=$runs/$answer
    fi
    load_run
    [ "$run_status" != running ] || stale=1
    for ((number = 0; number < ${#x_row[@]}; number++)); do
        [ "${x_status[number]}" != running ] || stale=1
    done
    if ((stale)) && claim "run $run_id"; then
        if ((!${#x_name[@]})) || claim "${x_name[@]/#/task $run_id/}"; then
            load_run
            whole=1
            open_events
            interrupt_dead 0
        fi
    fi
    print_table 2>/dev/null
    leave 0
}

main() { # [PHASE [NAME]]
    local phase=${1-all}
    set -uf
    shopt -u patsub_replacement 2>/dev/null
    caller_umask=$(umask)
    umask 077
    # Nobody may be there to read what it prints: no reason to end.
    trap '' PIPE
    { IFS= read -r host </proc/sys/kernel/hostname; } 2>/dev/null || host=$(uname -n)
    start_clock
    case $phase in
    -h | --help | help)
        printf '%s\n' "$usage"
        exit 0
        ;;
    all | gate | task | finish | status) ;;
    *) die 2 "'$phase' is no phase" "known: all, gate, task, finish, status" ;;
    esac
    if [ "$phase" = task ]; then
        (($# == 2)) || die 2 "task takes one NAME, the other phases nothing" "see --help"
    else
        (($# <= 1)) || die 2 "task takes one NAME, the other phases nothing" "see --help"
    fi
    screen_rows=0
    look_at_terminal
    read_settings
    case $phase in
    task | finish)
        [ -n "$given_run_id" ] || die 2 "$phase needs RUN_ID" "say RUN_ID=... in the environment"
        ;;
    all | gate)
        split_words "$rerun"
        if ((${#words[@]} && !is_resumed)); then
            die 2 "RERUN is for a run that goes on" "say RESUME=1 RUN_ID=... as well"
        fi
        ;;
    esac
    locate
    case $phase:$is_resumed:$given_run_id in
    all:1: | gate:1:)
        find_newest
        die 2 "RESUME=1 needs RUN_ID" "the newest run is RUN_ID=$answer"
        ;;
    esac
    [ "$phase" = status ] || note_unknown_values
    if ((is_dry)); then
        trap - PIPE
        print_dry_run
        exit 0
    fi
    case $phase in
    task) phase_task "$2" ;;
    *) "phase_$phase" ;;
    esac
}
