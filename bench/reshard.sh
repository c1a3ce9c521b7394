#!/bin/sh
# The rate of `weft checkpoint reshard` against that of a copy of the same bytes that bypasses the page cache, in turns:
# a model directory to the slices of four ranks, whose rows and columns are split. Before each turn the source is dropped
# from the page cache.
#
#   bench/reshard.sh [BUILD FOLDER [MEBIBYTES [TURNS [FOLDER TO WORK IN]]]]
#
# Prints the MB/s of each turn and their ratio; last the median of the ratios, and reshard's peak memory.
set -eu
weft=$(realpath "${1:-build}")/weft
mebibytes=${2:-2048}
turns=${3:-5}
work=$(mktemp -d -p "${4:-.}" weft-reshard-XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work"

# --- the source: eight matrices of random bytes; the layout of four ranks ---
rows=1024
columns=$((mebibytes * 1048576 / 8 / 4 / rows))
bytes=$((rows * columns * 4))
header='{' layout='{"current_stage": 0, "parallel_strategy_item": {}, "parallel_layout_item": {'
for i in 0 1 2 3 4 5 6 7; do
    [ $i = 0 ] || header="$header," layout="$layout,"
    header="$header\"w$i\":{\"dtype\":\"F32\",\"shape\":[$rows,$columns],\"data_offsets\":[$((i * bytes)),$(((i + 1) * bytes))]}"
    map='[0, -1]'
    [ $((i % 2)) = 0 ] || map='[-1, 0]'
    layout="$layout\"w$i\": {\"dev_matrix\": [4], \"tensor_map\": $map, \"tensor_shape\": [$rows, $columns], \"field\": 0,"
    layout="$layout \"opt_weight_shard_step\": 0, \"opt_weight_shard_size\": 0}"
done
header="$header}"
while [ $((${#header} % 8)) != 0 ]; do header="$header "; done
mkdir source
length=${#header}
{
    for _ in 1 2 3 4 5 6 7 8; do
        # shellcheck disable=SC2059
        printf "\\$(printf %03o $((length % 256)))"
        length=$((length / 256))
    done
    printf %s "$header"
    head -c $((8 * bytes)) /dev/urandom
} >source/model.safetensors
echo "$layout}}" >layout.json
sync

now() { date +%s.%N; }
drop() { dd of=source/model.safetensors oflag=nocache conv=notrunc,fdatasync count=0 2>/dev/null; }
rate() { awk -v a="$1" -v b="$2" -v n=$((8 * bytes)) 'BEGIN { printf "%.1f", n / 1e6 / (b - a) }'; }
time=
[ -x /usr/bin/time ] && time='/usr/bin/time -o memory -a -f %M'

for turn in $(seq "$turns"); do
    rm -rf copied slices
    drop
    begin=$(now)
    dd if=source/model.safetensors of=copied bs=4M iflag=direct oflag=direct conv=fsync 2>/dev/null
    copied=$(rate "$begin" "$(now)")
    rm -f copied
    drop
    begin=$(now)
    # shellcheck disable=SC2086
    $time "$weft" checkpoint reshard source slices --to layout.json >out
    resharded=$(rate "$begin" "$(now)")
    awk -v t="$turn" -v c="$copied" -v r="$resharded" \
        'BEGIN { printf "turn %d: copy %s MB/s, reshard %s MB/s, ratio %.3f\n", t, c, r, r / c }' | tee -a turns
done
sed 's/.*ratio //' turns | sort -n | awk '{ x[NR] = $1 } END { printf "median of the ratios: %s\n", x[int((NR + 1) / 2)] }'
[ ! -s memory ] || sort -n memory | tail -1 | awk '{ printf "peak memory of reshard: %.0f MiB\n", $1 / 1024 }'
