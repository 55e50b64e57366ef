#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh VERSION…     Builds the wheel once, and installs it into a fresh environment of each Python VERSION: the package
# imports, the entry points are there, the command runs.
. "$(dirname "$0")/lib.sh"
no_sanitizer
. "$MOOR_SOURCE_DIR/scripts/common.sh"
uv=$(find_uv) || skip "no uv here"
unset PYTHONPATH
export UV_PYTHON_DOWNLOADS=never UV_LINK_MODE=copy

python=$(find_python 3.11)
[ -n "$python" ] || skip "no CPython 3.11 here"
"$uv" venv --quiet --python "$python" "$tmp/builder"
"$uv" pip install --quiet --python "$tmp/builder/bin/python" abi3audit || skip "no package index in reach"
MOOR_CACHE_DIR=$cache "$uv" build --wheel --python "$tmp/builder/bin/python" -o "$tmp/dist" "$MOOR_SOURCE_DIR" \
	>"$tmp/log" 2>&1 || fail "the wheel cannot be built: $(tail -30 "$tmp/log")"
wheel=$(ls "$tmp"/dist/*.whl)
[[ $wheel == *-cp310-abi3-*.whl ]] || fail "the wheel's tag: $wheel"

files=$("$tmp/builder/bin/python" -m zipfile -l "$wheel" | awk '{print $1}')
for file in moor/__init__.py moor/libmoor.so.1 moor/_moor.abi3.so; do
	grep -qx "$file" <<<"$files" || fail "the wheel lacks $file: $files"
done
"$tmp/builder/bin/python" -m zipfile -e "$wheel" "$tmp/unpacked"
diff -B "$MOOR_BUILD_DIR"/python/libmoor-*.dist-info/entry_points.txt "$tmp"/unpacked/libmoor-*.dist-info/entry_points.txt ||
	fail "the wheel's entry points are not those of the build tree"

# Limited API of 3.11; that nothing in it is newer than 3.10 shows below, where 3.10 loads it with every symbol bound.
"$tmp/builder/bin/abi3audit" --strict --assume-minimum-abi3 3.11 "$tmp/unpacked/moor/_moor.abi3.so" >"$tmp/log" 2>&1 ||
	fail "abi3audit: $(tail -20 "$tmp/log")"

tried=
for version; do
	venv=$tmp/venv-$version
	python=$(find_python "$version")
	if [ -z "$python" ]; then
		echo "no CPython $version here"
		continue
	fi
	"$uv" venv --quiet --python "$python" "$venv"
	"$uv" pip install --quiet --python "$venv/bin/python" "$wheel"
	(cd "$tmp" && "$venv/bin/python" -c 'import moor, moor._moor, moor.plugin
from importlib.metadata import entry_points, version
assert moor.__file__.startswith(__import__("sys").prefix), moor.__file__
for group in ("vllm.general_plugins", "sglang.srt.plugins"):
    (point,) = entry_points(group=group, name="moor")
    assert callable(point.load()), point
print(version("libmoor"))') || fail "Python $version: the package does not import"
	tried+=" $version"
	[ -x "$MOOR_BUILD_DIR/bin/moor" ] || continue
	path=$("$venv/bin/moor" path | sed -n "s/^library //p") || fail "Python $version: the moor command does not run"
	[ "$(readlink -f "$path")" = "$(readlink -f "$venv"/lib/python*/site-packages/moor/libmoor.so.1)" ] ||
		fail "Python $version: moor path says $path"
done
[ -n "$tried" ] || skip "no CPython of $*"
echo "ok:$tried"
