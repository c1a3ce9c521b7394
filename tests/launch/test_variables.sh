#!/bin/sh
# Variables of the environment are read in src/launch/env alone: no other file of src/launch asks for one.
cd "$(dirname "$0")/../.." || exit 1
if grep -rnE 'getenv *\(' src/launch | grep -v '^src/launch/env/'; then
    echo 'these lines read the environment: src/launch/env does that'
    exit 1
fi
