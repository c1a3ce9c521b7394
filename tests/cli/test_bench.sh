#!/bin/sh
# weft bench comm: the table, its JSON, the links it writes, and words that are wrong; alone and under weft launch.
. tests/cli/run.inc

quick="--min 64 --max 4K --seconds 0.001"
# shellcheck disable=SC2086
{
    expect 0 "busbw GB/s" bench comm $quick --threads 2
    for name in all_reduce all_gather reduce_scatter all_to_all broadcast reduce gather scatter send; do
        grep -q "^$name " out || fail "no line of $name" out
    done
    expect 0 "within" bench comm $quick --threads 3 --collective all_reduce
    grep -q "^all_gather " out && fail "other collectives than the one asked for" out

    expect 0 '"event": "collective"' bench comm $quick --threads 2 --collective all_reduce --json --out links.json
    json out
    # By nccl-tests' definitions 2 (n - 1) / n is 1 for two ranks.
    [ "$(value algorithm_bytes_per_second <out | head -1)" = "$(value bus_bytes_per_second <out | head -1)" ] ||
        fail "two ranks' bus bandwidth is not the algorithm's" out
    [ "$(value bytes <out | head -1)" = 64 ] || fail "the smallest size is not the one asked for" out
    tr -d '\n' <links.json >line; echo >>line
    json line
    grep -q '"version": 1' links.json || fail "links without a version" links.json
    grep -q '"same_host": {"latency_seconds"' links.json || fail "links without one" links.json
    grep -q '"between_hosts": null' links.json || fail "links between hosts on one host" links.json

    expect 0 '"version": 1' bench comm $quick --threads 2 --collective reduce --out /dev/stderr
    expect 0 "all_gather" bench comm --min 7 --max 32 --seconds 0.001 --threads 3
    grep -q "^[a-z_]* *0 B" out && fail "a collective of nothing is measured" out
    expect 0 "1 ranks on 1 host" bench comm $quick --threads 1 --collective all_reduce
}
expect 2 "'all_reduce'" bench comm --collective all_redce
expect 2 "bench needs" bench
expect 2 "'com'" bench com
expect 2 "all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|reduce|gather|scatter|send" \
    bench comm --collective 'bandwidth of it all'
expect 2 "'again'" bench comm again
expect 2 '--min is empty' bench comm --min=
for size in 1Q 1T 3 -1 1e3 4.5K; do
    expect 2 "--min|'$size'|4|1024G" bench comm "--min=$size"
done
expect 2 "--max|'1K'|4K|1024G" bench comm --min 4K --max 1K
# What cannot be written is refused before a measurement that takes an hour, and for all ranks.
long="--seconds 3600 --min 64M --collective all_reduce"
# shellcheck disable=SC2086
{
    expect 1 "no/such/links.json" bench comm $long --out no/such/links.json
    grep -q "busbw" out && fail "measured without a place for the result" out
    expect 1 "directory" bench comm $long --out .
    expect 2 '--out is empty' bench comm $long --out=
    expect 1 "cannot write no/such/links.json" launch -n 2 --no-logs -- "$weft" bench comm $long --out no/such/links.json
}
# A file that is there stays what it was when the measurement does not come to its end.
cp links.json before.json
# shellcheck disable=SC2086
timeout 2 "$weft" bench comm $long --out links.json >out 2>&1 && fail "an hour in two seconds" out
cmp links.json before.json || fail "links of a measurement without an end"
[ "$(echo links.json*)" = links.json ] || fail "left behind: $(echo links.json*)"
expect 0 "example" bench --help

# Processes: rank 0 alone prints.
expect 0 "2 ranks on 1 host" launch -n 2 --no-logs -- "$weft" bench comm --min 64 --max 1K --seconds 0.001
[ "$(grep -c "busbw GB/s" out)" = 1 ] || fail "more than one rank prints" out
expect 2 "--threads|2" \
    launch -n 2 --no-logs -- "$weft" bench comm --threads 3
exit $failed
