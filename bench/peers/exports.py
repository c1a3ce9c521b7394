"""Let Megatron-LM and torchtitan read what `weft plan --export` writes for them.

    $py bench/peers/exports.py build/weft [--megatron DIR]

Each job is exported, read by the other system's own parser and checks, and compared in its degrees. torchtitan 0.3.0 must
be installed. DIR is a checkout of Megatron-LM, because its parser is in no package; without it those exports are left out.
Prints a line for each export. Exits with 1 if one is refused or means something else.
"""
import argparse
import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

LLAMA = ("model.family=llama model.layers={layers} model.hidden=4096 model.heads=32 model.kv_heads=8 model.ffn=14336 "
         "model.vocab=128256 model.context=8192 train.precision=bf16 train.batch=64")
QWEN3 = ("model.family=qwen3 model.layers=36 model.hidden=4096 model.heads=32 model.kv_heads=8 model.head_dim=128 "
         "model.ffn=12288 model.vocab=151936 model.context=4096 train.precision=bf16 train.batch=64")
MIXTRAL = ("model.family=mixtral model.layers=8 model.hidden=4096 model.heads=32 model.kv_heads=8 model.ffn=14336 model.experts=8 "
           "model.vocab=32000 model.context=8192 model.window=4096 train.precision=bf16 train.batch=64 train.optimizer.name=sgd")
GPT = "model.family=gpt2 model.layers={layers} model.hidden=1024 model.heads=16 model.context=1024 model.vocab=50304 train.batch=64"
JOBS = [
    (LLAMA.format(layers=32), "tp=4 pp=1 level=1"),
    (LLAMA.format(layers=32), "tp=2 pp=2 schedule=1f1b microbatches=8 level=1"),
    (LLAMA.format(layers=32), "tp=2 pp=2 schedule=interleaved chunks=2 microbatches=8"),
    (LLAMA.format(layers=30), "tp=2 pp=4 schedule=1f1b microbatches=8"),  # layers that do not divide
    (LLAMA.format(layers=30), "tp=1 pp=4 schedule=interleaved chunks=2 microbatches=8"),
    (LLAMA.format(layers=32), "tp=1 cp=2 pp=1 level=3"),
    (QWEN3, "tp=2 pp=2 schedule=1f1b microbatches=8"),
    (MIXTRAL, "tp=2 ep=4 pp=1 sp=1"),
    (GPT.format(layers=13), "tp=2 pp=2 schedule=interleaved chunks=3 microbatches=8"),
]
DEVICES = 16


def export(weft, system, job, fix):
    words = [weft, "plan", *job.split(), "--machine", "2 hosts of 8 h100-80g", "--evaluations", "2", "--fix", fix, "--export", system]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def wanted(fix):
    return {name: int(value) for name, _, value in (word.partition("=") for word in fix.split()) if value.isdigit()}


def differences(fix, degrees):
    return [f"{name} is {degrees[name]}, not {value}" for name, value in wanted(fix).items() if degrees.get(name, value) != value]


def torchtitan_reads(text, fix):
    from torchtitan.config import ConfigManager
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "weft_job.py").write_text(text, encoding="utf-8")
        sys.path.insert(0, folder)
        sys.modules.pop("weft_job", None)
        importlib.invalidate_caches()
        try:
            config = ConfigManager().parse_args(["--module", "weft_job", "--config", "weft_job"])
        finally:
            sys.path.remove(folder)
    p = config.parallelism
    return differences(fix, {"tp": p.tensor_parallel_degree, "pp": p.pipeline_parallel_degree, "cp": p.context_parallel_degree})


def megatron_reads(text, fix):
    import shlex
    import typing
    import torch
    import typing_extensions
    typing.override = typing_extensions.override  # of Python 3.12
    # What the checks ask of a device, without one.
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: argparse.Namespace(major=9, minor=0)
    from megatron.training import arguments
    options = shlex.split(text, comments=True) + ["--tokenizer-type", "NullTokenizer", "--mock-data", "--transformer-impl", "local"]
    sys.argv = ["pretrain_gpt.py", *options]
    os.environ.update(WORLD_SIZE=str(DEVICES), RANK="0", LOCAL_RANK="0",
                      CUDA_DEVICE_MAX_CONNECTIONS="8" if "--use-megatron-fsdp" in options else "1")
    args = arguments.parse_args()
    arguments.validate_args(args)
    layout = args.pipeline_model_parallel_layout
    if layout:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
        if isinstance(layout, str):
            layout = PipelineParallelLayerLayout(layout, args.pipeline_model_parallel_size)
        layout.validate_layer_layout(args.num_layers, None)
    return differences(fix, {"tp": args.tensor_model_parallel_size, "pp": args.pipeline_model_parallel_size,
                             "cp": args.context_parallel_size, "chunks": args.virtual_pipeline_model_parallel_size or 1})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weft")
    parser.add_argument("--megatron", metavar="DIR")
    options = parser.parse_args()
    readers = {"torchtitan": torchtitan_reads}
    if options.megatron:
        sys.path.insert(0, options.megatron)
        readers["megatron"] = megatron_reads
    failed = 0
    for system, read in readers.items():
        for job, fix in JOBS:
            family = job.partition(" ")[0].partition("=")[2]
            if system == "torchtitan" and family not in ("llama", "qwen3"):
                continue
            try:
                wrong = read(export(options.weft, system, job, fix), fix)
            except (Exception, SystemExit) as error:  # pylint: disable=broad-except
                wrong = [f"{type(error).__name__}: {error}"]
            failed += bool(wrong)
            print(f"{system:10} {family:6} {fix}: {'; '.join(wrong) or 'read'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
