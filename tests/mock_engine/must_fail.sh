#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# must_fail.sh COMMAND…: passes when the command exits 1 (an expectation did not hold), and only then.
"$@"
code=$?
echo "exit $code of a run that is broken on purpose (1 is right)"
[ "$code" -eq 1 ]
