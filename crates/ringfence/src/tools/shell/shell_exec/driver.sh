# A shell that lives on between calls. Each message on the line is a name and a command; the answer is the name and the
# command's status. It is given where the loop begins again, since a command may say `continue` or `break`.
eval "exec 9<&$RINGFENCE_LINE $RINGFENCE_LINE>&-"
unset RINGFENCE_LINE
# What interrupts a command does not end the shell.
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
