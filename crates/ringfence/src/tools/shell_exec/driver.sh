# A shell that lives on between calls. Each message on the line is a command; the answer is its status.
eval "exec 9<&$RINGFENCE_LINE $RINGFENCE_LINE>&-"
unset RINGFENCE_LINE
# What interrupts a command does not end the shell.
trap ':' INT
while IFS= read -r -d '' -u 9 __ringfence; do
    eval "$__ringfence" 9>&-
    printf '%s\0' "$?" >&9
done
