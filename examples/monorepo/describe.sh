#!/bin/sh
# What the current directory holds, for the stage that STAGE names.
set -eu

echo "package: $(basename "$PWD")"
echo "stage: $STAGE"
ls
