#!/bin/sh
# Words that a user types by habit, or that a shell splits: the message says what to type.
. tests/cli/run.inc

# --- names: case, '-' and '_' do not count ---
expect 1 "mean 'adamw'?" train job.yaml train.optimizer.name=adamW
expect 1 "mean 'adamw'?" train job.yaml train.optimizer=AdamW
expect 1 "mean 'steps'?" train job.yaml train.Steps=5
expect 1 "mean 'eval_every'?" train job.yaml train.eval-every=5
expect 2 "mean 'train'?" Train job.yaml
expect 2 "cannot 'Verify'|verify" checkpoint Verify run
expect 2 'mean --json?' train job.yaml --JSON
expect 2 'mean --top-k?' generate run --top_k 5

# --- keys as options, of every verb that takes keys ---
expect 2 'unknown option --train.steps|key train.steps=5?' train job.yaml --train.steps=5
expect 2 'unknown option --lr|key train.optimizer.lr=1e-3?' train job.yaml --lr 1e-3
expect 2 'key train.steps=5?' train job.yaml --steps 5
expect 2 'key train.steps=5?' train job.yaml --max-steps=5
expect 2 'key train.batch=8?' train job.yaml --batch-size 8
expect 2 'key train.optimizer.lr=1e-3?' train job.yaml --learning_rate 1e-3
expect 2 'key checkpoint.dir=out?' train job.yaml --output-dir out
expect 2 'key train.optimizer.lr=1e-3?' train job.yaml -lr 1e-3
for verb in model plan program simulate; do
    expect 2 'key train.optimizer.lr=1?' $verb job.yaml --lr 1
done
expect 2 'unknown option --max-tokens|mean --tokens?' generate run --max-tokens 5
expect 2 'mean --tokens?' generate run --max_new_tokens=5
expect 2 'unknown option -json|mean --json?' info -json
expect 1 'mean train.optimizer.lr?' train job.yaml learning_rate=1e-3
expect 1 'mean train.optimizer.lr?' train job.yaml train.learning-rate=1e-3
expect 1 'mean train.batch?' train job.yaml batch_size=3

# --- words that the shell has split ---
expect 2 "'train.optimizer.betas=[0.9, 0.95]'|quotes" \
    train job.yaml train.optimizer.betas=[0.9, 0.95]
expect 2 "'parallel.mesh={dp: 2, tp: 1}'|quotes" train job.yaml 'parallel.mesh={dp:' '2,' tp: '1}'
expect 2 "write train.steps=50 |'='" train job.yaml train.steps = 50
expect 2 "write train.steps=50 |'='" train job.yaml train.steps =50
expect 2 "write train.steps=50 |'='" train job.yaml train.steps= 50
expect 2 "write train.steps=50 |'='" train train.steps = 50 data.path=text.txt
expect 2 "write train.steps=VALUE" train job.yaml train.steps 50
expect 2 "'job.yaml'|'other.yaml'" train job.yaml other.yaml

# --- a section as one word ---
expect 0 'step 3/3' train job.yaml 'train.schedule={name: linear, warmup: 1}' train.steps=3
expect 1 "'zero'|parallel.optimizer" train job.yaml 'parallel.optimizer={zero: 1}'
expect 1 "'train.optimizer={lr: fast}': train.optimizer.lr" train job.yaml 'train.optimizer={lr: fast}'
expect 1 'data.format=...|data={format: ...' train job.yaml data=text.txt

# --- what is no job file ---
expect 1 'text.txt is|data.path=text.txt' train text.txt
printf 'Hello: this: is: a corpus\n\tof lines\n' >corpus.txt
expect 1 'corpus.txt is|data.path=corpus.txt' train corpus.txt
mkdir corpus
expect 1 'data.path=corpus' train corpus
mkdir hf
echo '{}' >hf/config.json
expect 1 'model.from=hf' train hf

# --- a run continues its own job ---
"$weft" train job.yaml checkpoint.dir=run train.steps=4 >out 2>&1 || fail 'a good run failed' out
expect 0 'step 4|step 6/6' train run train.steps=6
mv run moved
expect 0 'step 6|step 7/7' train moved/ train.steps=7
[ -d run ] && fail 'the run went on in the directory that its job names'
expect 0 'hidden: 32' train moved --job
expect 1 'moved/step-000000000007|train moved`' train moved/step-000000000007

# --- a run that goes on with other settings ---
expect 0 'note|settings: train.optimizer.lr 0.001 -> 0.002' \
    train moved train.steps=8 train.optimizer.lr=2e-3
expect 0 'train.batch 4 -> 8' train moved train.steps=9 train.batch=8
expect 0 'train.schedule.name cosine -> linear' train moved train.steps=10 train.schedule=linear
"$weft" train moved train.steps=11 >out 2>&1 || fail 'a good run failed' out
grep 'other settings' out && fail 'equal settings are called others' out
expect 1 'model.hidden 32 -> 64' train moved model.hidden=64 train.steps=20
expect 1 'model.layers 2 -> 3' train moved model.layers=3 train.steps=20

# --- models that are not there ---
expect 1 'model.from|nosuchdir' train job.yaml model.from=nosuchdir
for words in "train model.from=meta-llama/Llama-3-8B data.path=text.txt" "train job.yaml model.from=gpt2-org/small" \
    "generate meta-llama/Llama-3-8B --prompt x" "eval job.yaml meta-llama/Llama-3-8B" \
    "model --model meta-llama/Llama-3-8B" "plan --model meta-llama/Llama-3-8B --devices 2" \
    "checkpoint inspect meta-llama/Llama-3-8B" "train job.yaml model.from=gpt2" \
    "train job.yaml data.tokenizer=meta-llama/Llama-3-8B"; do
    # shellcheck disable=SC2086
    expect 1 'Hugging Face|download' $words
done
expect 1 'download' generate https://huggingface.co/gpt2 --prompt x
expect 1 'download' train job.yaml data.path=https://nowhere.example/text.txt
expect 1 './no/such' generate ./no/such --prompt x
has_facts out 'Hugging Face' && fail 'a path is taken for a name of a hub' out
exit $failed
