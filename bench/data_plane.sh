#!/bin/sh
# Messages between hosts by each carrier (bench/rounds --by mac, tls, ucx) beside iperf3, in turns: two network namespaces
# as two hosts, with a veth pair between them, bare and limited to 10 Gbit/s (tc tbf). Needs root, iproute2 and iperf3.
#
#   bench/data_plane.sh [BUILD FOLDER [TURNS [SECONDS OF EACH MEASUREMENT]]]
#
# With 3 turns of 1 s it takes about a minute and a half. Prints each turn, then the medians with their ratios: rates of
# messages of 4 MiB to iperf3's, and times of an all-reduce of 8 bytes (a message each way at once) to UCX's over TCP. A
# ratio that misses its bound is marked. The last two are bench/tls_pair: TCP and TLS with nothing else, which bound the
# carriers. In the environment, LINKS ("bare", "limited") chooses links, and STREAMS (2) says with how many streams for each
# pair of ranks the rates are measured once more (0: not at all). The two ranks share this machine's cores: where one stream
# uses all of them, more streams cannot be faster.
set -eu
build=${1:-build}
turns=${2:-3}
seconds=${3:-1}
links=${LINKS:-limited bare}
streams=${STREAMS:-2}
bytes=4194304
rounds=$build/bench/rounds
if ! command -v iperf3 >/dev/null; then
    echo "SKIP: iperf3 is missing; install it with: apt-get install -y iperf3" >&2
    exit 77
fi
if [ "$(id -u)" != 0 ] || ! ip netns list >/dev/null 2>&1; then
    echo "SKIP: needs root and network namespaces (iproute2)" >&2
    exit 77
fi
[ -x "$rounds" ] || { echo "no $rounds; build it with: cmake --build $build --target bench_rounds bench_tls_pair" >&2; exit 1; }
a=weft-a-$$ b=weft-b-$$
server=
folder=$(mktemp -d)
clean() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    ip netns del "$a" 2>/dev/null || true
    ip netns del "$b" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean EXIT
trap 'exit 1' INT TERM
ip netns add "$a" || { echo "SKIP: no network namespaces" >&2; exit 77; }
ip netns add "$b"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b"
ip -n "$a" addr add 10.99.0.1/24 dev veth0
ip -n "$b" addr add 10.99.0.2/24 dev veth0
for n in "$a" "$b"; do
    ip -n "$n" link set lo up
    ip -n "$n" link set veth0 up
done
ip netns exec "$b" iperf3 -s >/dev/null 2>&1 &
server=$!
until [ "$(ip netns exec "$a" cat /sys/class/net/veth0/operstate)" = up ] &&
    ip netns exec "$b" grep -q ':1451 ' /proc/net/tcp6; do # 5201: iperf3 listens
    sleep 0.1
done
# Both directions of the link: bare, or limited.
lay() {
    for n in "$a" "$b"; do
        ip netns exec "$n" tc qdisc del dev veth0 root 2>/dev/null || true
        [ "$1" = bare ] || ip netns exec "$n" tc qdisc add dev veth0 root tbf rate 10gbit burst 2mb latency 20ms
    done
}
# Gbit/s that iperf3 delivers.
iperf() {
    ip netns exec "$a" iperf3 -c 10.99.0.2 -t "$(awk -v s="$seconds" 'BEGIN {print (s > 1 ? int(s) : 1)}')" -f g | awk '/receiver/ {print $7}'
}
# row BYTES CARRIER[-STREAMS] WHAT: of bench/rounds
row() {
    case $2 in *-*) number=${2#*-} ;; *) number=1 ;; esac
    carrier=${2%-*}
    [ "$carrier" = ucx ] && tcp=tcp || tcp=
    UCX_TLS=$tcp "$rounds" --by "$carrier" --streams "$number" --hosts "$a:veth0,$b:veth0" --bytes "$1" "$1" --seconds "$seconds" --only "$3"
}
# pair [plain]: microseconds of an exchange of 64 bytes by bench/tls_pair, so by OpenSSL, or by TCP, and nothing else
pair() {
    ip netns exec "$b" "$build/bench/tls_pair" listen 10.99.0.2 7711 "$@" >/dev/null &
    ip netns exec "$a" "$build/bench/tls_pair" connect 10.99.0.2 7711 "$@"
    wait $!
}
several=
[ "$streams" = 0 ] || several="mac-$streams tls-$streams"
for link in $links; do
    lay "$link"
    turn=0
    while [ "$turn" -lt "$turns" ]; do
        echo "$link rate iperf3 $(iperf)"
        for carrier in mac tls ucx $several; do
            echo "$link rate $carrier $(row $bytes "$carrier" message | awk -v n=$bytes '$1 == n {print $3}')"
            case $link-$carrier in limited-* | *-*-*) continue ;; esac
            echo "$link latency $carrier $(row 8 "$carrier" all_reduce | awk '$1 == 8 {print $4}')"
        done
        if [ "$link" = bare ] && [ -x "$build/bench/tls_pair" ]; then
            echo "bare latency tcp-alone $(pair plain)"
            echo "bare latency tls-alone $(pair)"
        fi
        turn=$((turn + 1))
    done
done | tee "$folder/all"
awk -v streams="$streams" '
function median(key,    i, j, n, x, t) {
    n = count[key]
    for (i = 1; i <= n; i++) x[i] = value[key, i] + 0
    for (i = 2; i <= n; i++) for (j = i; j > 1 && x[j - 1] > x[j]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t }
    return x[int((n + 1) / 2)]
}
{ key = $1 " " $2 " " $3; value[key, ++count[key]] = $4; links[$1] = 1 }
function say(what, of, against, least, most,    ratio) {
    if (!count[of] || !count[against]) return
    ratio = median(of) / median(against)
    printf "%-28s %8.2f, %s %8.2f: ratio %.2f", what, median(of), against, median(against), ratio
    if ((least && ratio < least) || (most && ratio > most)) printf "  MISSES its bound of %.2f", least ? least : most
    printf "\n"
}
END {
    print "medians: Gbit/s of messages of 4 MiB, microseconds of an all-reduce of 8 bytes"
    say("limited, mac", "limited rate mac", "limited rate iperf3", 0.95, 0)
    say("limited, tls", "limited rate tls", "limited rate iperf3", 0.95, 0)
    say("limited, ucx", "limited rate ucx", "limited rate iperf3", 0, 0)
    say("limited, mac, streams: " streams, "limited rate mac-" streams, "limited rate iperf3", 0.95, 0)
    say("limited, tls, streams: " streams, "limited rate tls-" streams, "limited rate iperf3", 0.95, 0)
    say("bare, mac", "bare rate mac", "bare rate iperf3", 0.55, 0)
    say("bare, tls", "bare rate tls", "bare rate iperf3", 0.4, 0)
    say("bare, ucx", "bare rate ucx", "bare rate iperf3", 0, 0)
    say("bare, mac, streams: " streams, "bare rate mac-" streams, "bare rate iperf3", 0.55, 0)
    say("bare, tls, streams: " streams, "bare rate tls-" streams, "bare rate iperf3", 0.4, 0)
    say("latency, mac", "bare latency mac", "bare latency ucx", 0, 1.3)
    say("latency, tls", "bare latency tls", "bare latency ucx", 0, 1.3)
    say("latency, TCP alone", "bare latency tcp-alone", "bare latency ucx", 0, 0)
    say("latency, TLS alone", "bare latency tls-alone", "bare latency ucx", 0, 0)
}' "$folder/all"
