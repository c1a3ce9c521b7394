#!/bin/sh
# Encrypted checkpoints from outside: training, resuming, and all commands that read them; wrong keys; damage.
. tests/cli/run.inc
if ! "$weft" info | grep -q 'OpenSSL *built in'; then
    echo "SKIP: this build has no OpenSSL, which encrypts"
    exit 77
fi

digits=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
umask 077
echo $digits >run.key
"$weft" checkpoint make-key other.key || fail 'no new key'
expect 1 'other.key' checkpoint make-key other.key
expect 2 '--key' checkpoint make-key third.key --key run.key
[ "$(wc -c <other.key)" = 65 ] || fail 'a new key has another length'
quiet() { # words...: must succeed
    "$weft" "$@" >log 2>&1 || fail "weft $* fails" log
}
digest() {
    "$weft" checkpoint digest "$@" --json >digest.json || fail "no digest of $1" digest.json
    sed -n 's/.*"digest": "\([^"]*\)".*/\1/p' digest.json
}

quiet train job.yaml checkpoint.dir=plain checkpoint.every=6
quiet train job.yaml checkpoint.dir=run checkpoint.every=6 checkpoint.key=run.key train.log=log.jsonl
whole=$(digest plain)
[ "$(digest run --key run.key)" = "$whole" ] || fail 'encrypted tensors are others'
export WEFT_KEY=$digits
[ "$(digest run --key env:WEFT_KEY)" = "$whole" ] || fail 'a key in a variable gives others'
unset WEFT_KEY
for file in run/step-*/*; do
    [ "$(head -c 8 "$file")" = WEFTSEAL ] || fail "$file is not encrypted"
done
grep -rq $digits run log.jsonl log && fail 'the key was written somewhere'
grep -rq 'h.0.attn\|gpt2' run && fail 'names can be read'

# --- every command reads it with the key (accept 30(e)) ---
expect 0 'step-000000000006|good|step-000000000012|good' checkpoint verify run --key run.key
expect 0 'steps|6 12|adamw' checkpoint inspect run --key run.key
expect 0 'of which 0 differ' checkpoint diff plain run --key run.key
expect 0 'half-rank-00000' checkpoint split run/step-000000000012 --ranks 2 --split '*.mlp.c_fc.weight=1' --out half --key run.key
expect 0 'weft' checkpoint reshard run back --key run.key
expect 0 'of which 0 differ' checkpoint diff plain back
expect 0 'hf' checkpoint reshard run hub --format hf --key run.key
expect 0 'loss' eval job.yaml run checkpoint.key=run.key data.validation=0.2
"$weft" generate plain --prompt weft --tokens 8 >a 2>/dev/null || fail 'no text'
"$weft" generate run --prompt weft --tokens 8 --key run.key >b 2>/dev/null || fail 'no text of the encrypted model'
cmp a b || fail 'another text'
"$weft" generate hub --prompt weft --tokens 8 >b 2>/dev/null || fail 'no text of the converted model'
cmp a b || fail 'another text of the converted model'

# --- resuming: the bits of a run that was not encrypted; the first steps may be plain ---
cp -r plain mixed
quiet train job.yaml checkpoint.dir=plain train.steps=16
for dir in run mixed; do
    quiet train job.yaml checkpoint.dir=$dir checkpoint.key=run.key train.steps=16
    [ "$(digest $dir --key run.key)" = "$(digest plain)" ] || fail "$dir: the resumed run has other tensors"
done
expect 1 'checkpoint.dir|encrypted|checkpoint.key' train job.yaml checkpoint.dir=mixed train.steps=20

# --- wrong keys and bad keys; nothing is written ---
id=$("$weft" checkpoint digest run 2>&1 | sed -n 's/.*with key \([0-9a-f]*\).*/\1/p')
[ ${#id} = 16 ] || fail 'a missing key is not told'
for command in 'digest run' 'verify run' 'inspect run' 'diff plain run' 'reshard run none'; do
    # shellcheck disable=SC2086
    expect 1 "encrypted|$id|checkpoint.key|--key" checkpoint $command
    # shellcheck disable=SC2086
    expect 1 "encrypted|$id|another" checkpoint $command --key other.key
done
[ -e none ] && fail 'a wrong key has left a destination'
expect 1 'encrypted|key' generate run --prompt weft --tokens 3
expect 1 'encrypted|another' eval job.yaml run checkpoint.key=other.key data.validation=0.2
find run/step-* -type f -exec cksum {} + | sort >before
expect 1 'checkpoint.dir|encrypted|another' train job.yaml checkpoint.dir=run checkpoint.key=other.key train.steps=20
find run/step-* -type f -exec cksum {} + | sort >after
cmp before after || fail 'a run with a wrong key has changed the directory'
expect 1 'nokey' train job.yaml checkpoint.dir=new checkpoint.key=nokey
expect 1 'WEFT_NO_KEY|not set' train job.yaml checkpoint.dir=new checkpoint.key=env:WEFT_NO_KEY
expect 1 'key itself' train job.yaml checkpoint.dir=new checkpoint.key=$digits
grep -q $digits out && fail 'the message shows the key'
chmod 644 other.key
expect 1 'other.key|mode 0644|chmod 600' train job.yaml checkpoint.dir=new checkpoint.key=other.key
expect 1 'sliced' launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=new checkpoint.key=run.key
[ -e new/step-000000000012 ] && fail 'a refused key has left checkpoints'
expect 2 '--key' checkpoint merge-strategies a.json --out b.json --key run.key

# --- slices of several processes ---
quiet launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=sliced checkpoint.sliced=true checkpoint.key=run.key \
    checkpoint.every=6
quiet train job.yaml --devices 2 checkpoint.dir=two
[ "$(digest sliced --key run.key)" = "$(digest two)" ] || fail 'encrypted slices have other tensors'
for file in sliced/rank_*/step-*/*; do
    [ "$(head -c 8 "$file")" = WEFTSEAL ] || fail "$file is not encrypted"
done
expect 0 'good' checkpoint verify sliced --key run.key
expect 1 'WEFT_NO_KEY|not set' launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=sliced \
    checkpoint.sliced=true checkpoint.key=env:WEFT_NO_KEY train.steps=16
quiet launch -n 2 --no-logs -- "$weft" train job.yaml checkpoint.dir=sliced checkpoint.sliced=true checkpoint.key=run.key \
    train.steps=16
quiet train job.yaml --devices 2 checkpoint.dir=two train.steps=16
[ "$(digest sliced --key run.key)" = "$(digest two)" ] || fail 'the resumed slices have other tensors'
quiet launch -n 2 --no-logs -- "$weft" eval job.yaml sliced checkpoint.key=run.key data.validation=0.2

# --- damage: the step before is taken ---
file=run/step-000000000016/model.safetensors
[ -f $file ] || file=$(echo run/step-000000000016/model*.safetensors)
middle=$(($(wc -c <"$file") / 2))
[ "$(dd if="$file" bs=1 skip=$middle count=1 2>/dev/null | tr x y)" = y ] && other=z || other=x # what is encrypted is random
printf $other | dd of="$file" bs=1 seek=$middle conv=notrunc 2>/dev/null
expect 1 'DAMAGED|the tag' checkpoint verify run --key run.key
expect 0 'skipped step 16|step         ' checkpoint inspect run --key run.key
exit $failed
