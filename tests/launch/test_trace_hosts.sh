#!/bin/sh
# One timeline of a job on two hosts, which are network namespaces of this machine: each host writes the trace of its ranks,
# and `weft trace merge` puts them together. Hosts whose clocks have nothing in common are set by the steps that their ranks
# begin together. Needs root and iproute2.
# shellcheck source=../cli/run.inc
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../cli/run.inc"
# shellcheck source=hosts.inc
. "$here/hosts.inc"
command -v python3 >/dev/null || { echo 'SKIP: no python3, which reads the traces'; exit 77; }
ip link add veth0 netns $a type veth peer name veth0 netns $b &&
    ip -n $a addr add 10.97.0.1/24 dev veth0 && ip -n $b addr add 10.97.0.2/24 dev veth0 || exit 1
for host in $a $b; do ip -n $host link set veth0 up || exit 1; done

begin traced -- "$weft" train job.yaml --trace trace.json
end
[ $code0$code1 = 00 ] || fail "exit $code0 and $code1:" traced.0
ls trace.json* | tr '\n' ' ' >files
[ "$(cat files)" = 'trace.json trace.json.host1 ' ] || fail 'other files than one for each host:' files
"$weft" trace merge all.json trace.json trace.json.host1 >merged 2>&1 || fail 'traces are not merged:' merged

# The second host as one of another kernel, whose clock began 1000 s earlier.
python3 - <<'END' || fail 'the trace cannot be changed'
import re
text = open("trace.json.host1").read()
at = text.rindex('"otherData"')
facts, n = re.subn(r'"host":"[^"]*"', '"host":"another"', text[at:])
facts, m = re.subn(r'"monotonic_ns":(\d+)', lambda x: f'"monotonic_ns":{int(x[1]) + 10**12}', facts)
facts, u = re.subn(r'"unix_ns":(\d+)', lambda x: f'"unix_ns":{int(x[1]) + 5 * 10**12}', facts)
assert n == m == u == 1, facts
open("other.json", "w").write(text[:at] + facts)
END
"$weft" trace merge apart.json trace.json other.json >merged 2>&1 || fail 'traces of unlike clocks are not merged:' merged

python3 - <<'END' || fail 'the merged traces are wrong'
import json

def events(path):
    found = [e for e in json.load(open(path))["traceEvents"] if e.get("ph") == "X"]
    assert found, path
    return found

def key(e):
    return (e["pid"], e.get("tid"), e["name"])

parts = events("trace.json") + events("trace.json.host1")
assert not {e["pid"] for e in events("trace.json")} & {e["pid"] for e in events("trace.json.host1")}
for path in ("all.json", "apart.json"):
    merged = events(path)
    assert sorted(map(key, merged)) == sorted(map(key, parts)), path
    assert len({e["pid"] for e in merged}) == 4, {e["pid"] for e in merged}
    begins = {p: min(e["ts"] for e in merged if e["pid"] == p) for p in {e["pid"] for e in merged}}
    spread = (max(begins.values()) - min(begins.values())) / 1e6
    # The clocks are 1000 s or 5000 s apart: the ranks of a job are not.
    assert spread < 100, (path, begins)
END
exit $failed
