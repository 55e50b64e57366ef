# SPDX-License-Identifier: Apache-2.0
"""`python -m moor check ENGINE`: the part of the `moor` command that needs an interpreter."""
import sys

from moor import _check


def main(argv):
    if len(argv) == 2 and argv[0] == "check":
        return _check.main(argv[1])
    print("usage: python -m moor check ENGINE", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
