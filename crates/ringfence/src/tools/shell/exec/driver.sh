# A shell that stays alive between calls. A message is a name and a command; the answer is the name
# and the status, sent where the loop restarts, since a command may contain `continue` or `break`.
eval "exec 9<&$RINGFENCE_LINE $RINGFENCE_LINE>&-"
unset RINGFENCE_LINE
# An interrupt of a command must not end the shell.
trap ':' INT
while :; do
    while __rf_status=$?
        [ -z "${__rf_name-}" ] || printf '%s %s\0' "$__rf_name" "$__rf_status" >&9
        __rf_name=
        IFS= read -r -d '' -u 9 __rf_command || exit
    do
        __rf_name=${__rf_command%% *}
        eval "${__rf_command#* }" 9>&-
    done
done
