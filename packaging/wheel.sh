#!/usr/bin/env bash
# Makes the wheel for PyPI.
source "$(dirname "$0")/common.sh"

report "$(python3 packaging/wheel.py "$binary" "$packages" "$version")"
