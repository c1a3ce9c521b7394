#!/bin/sh
# Create the virtual environment the comparison scripts of this folder run in.
#
#   bench/peers/setup.sh [DIR]
#
# DIR defaults to $WEFT_PEERS, and that to $HOME/.cache/weft-peers.  PYTHON
# names the interpreter to start from (default python3).  Run again, it only
# installs what is missing.  The last line printed is the interpreter to use.
set -eu

dir=${1:-${WEFT_PEERS:-$HOME/.cache/weft-peers}}
python=${PYTHON:-python3}
py=$dir/bin/python
log=$dir/setup.log

probe='
import sys
try:
    import numpy, safetensors, torch, transformers
except Exception as error:
    print(error, file=sys.stderr)
    sys.exit(1)
print("torch", torch.__version__, "transformers", transformers.__version__,
      "numpy", numpy.__version__, "safetensors", safetensors.__version__,
      file=sys.stderr)
'

if [ ! -x "$py" ]; then
    mkdir -p "$dir"
    "$python" -m venv "$dir"
fi

if ! "$py" -c "$probe" 2>/dev/null; then
    # --no-cache-dir: the wheels are large and are wanted only once.
    echo "installing into $dir (log: $log)" >&2
    if ! "$py" -m pip install --no-cache-dir 'torch>=2,<3' numpy safetensors \
            transformers >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        exit 1
    fi
fi

"$py" -c "$probe"
echo "$py"
