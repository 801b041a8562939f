__rf_line=$RINGFENCE_LINE __rf_parts=(); unset -v RINGFENCE_LINE; IFS=' ' builtin read -r -u "$__rf_line" -a __rf_sizes && for __rf_size in "${__rf_sizes[@]}"; do __rf_part=; [[ $__rf_size = 0 ]] || LC_ALL=C IFS= builtin read -r -N "$__rf_size" -u "$__rf_line" __rf_part; __rf_parts+=("$__rf_part"); done; builtin read -r -d '' -u "$__rf_line" __rf_part; if [[ ${__rf_parts[0]} = once ]]; then exec {__rf_line}>&-; set -- "${__rf_parts[@]:6}"; eval "unset -v __rf_line __rf_parts __rf_part __rf_sizes __rf_size;${__rf_parts[2]}"; exit; fi
# Everything up to here is on the first line, so that the code sees its own line numbers.
# From here on it is a session: cells are sourced, because an interrupt can then return from them at any depth.
__rf_two() { return 2; }
__rf_busy=0
trap 'if ((__rf_busy)); then __rf_busy=2; shopt -s extdebug; set -T; trap "((!\${#BASH_SOURCE[@]})) || __rf_two" DEBUG; fi' INT
# A cell's status is reported where the loop restarts: a cell may contain `continue` or `break`.
while :; do
    while
        __rf_status=$?
        if ((__rf_busy)); then
            if ((__rf_busy == 2)); then trap - DEBUG; shopt -u extdebug; set +T; __rf_status=130; fi
            __rf_busy=0
            builtin printf 'status\x1f%s\0' "$__rf_status" >&"$__rf_line"
            __rf_parts=()
            IFS=' ' builtin read -r -u "$__rf_line" -a __rf_sizes || :
            for __rf_size in "${__rf_sizes[@]}"; do
                __rf_part=
                [[ $__rf_size = 0 ]] || LC_ALL=C IFS= builtin read -r -N "$__rf_size" -u "$__rf_line" __rf_part
                __rf_parts+=("$__rf_part")
            done
            builtin read -r -d '' -u "$__rf_line" __rf_part || :
        fi
        [[ ${#__rf_parts[@]} != 0 ]] || exit 0
    do
        set -- "${__rf_parts[@]:6}"
        __rf_busy=1
        if [[ ${__rf_parts[3]} ]]; then
            builtin source "${__rf_parts[3]}" {__rf_line}>&-
        else
            builtin source /dev/fd/8 8<<<"exec 8<&-;${__rf_parts[2]}" {__rf_line}>&-
        fi
    done
done
