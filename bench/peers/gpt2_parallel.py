#!/usr/bin/env python3
"""Time training steps of GPT-2 124M over processes, in PyTorch on the CPU.

    gpt2_parallel.py --split ddp|fsdp|tensor [--devices 2] [--threads 2] ...

One process for each device, with gloo between them.  --batch is that of all
processes together, and so is --threads.  The model and the step are those of
gpt2_torch.py.

ddp is DistributedDataParallel, fsdp is fully_shard of each block and of the
whole (parameters, gradients and optimizer states are all in pieces), tensor
is parallelize_module: columns and rows of the products in a block, heads of
the attention, the vocabulary at both ends and in the loss.

Processes of several hosts are started one by one, with equal options and
--rank R --address HOST:PORT (of rank 0) --interface NAME.
"""

import os
import socket

import stepper


def arguments():
    parser = stepper.base_parser(__doc__.split("\n")[0])
    parser.add_argument("--split", choices=("ddp", "fsdp", "tensor"),
                        default="ddp")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--address", default="127.0.0.1:0")
    parser.add_argument("--interface", default="lo")
    args = parser.parse_args()
    if args.mode != "eager" or args.bf16_mode != "autocast":
        parser.error("only --mode eager and --bf16-mode autocast")
    args.threads = max(1, args.threads // args.devices)
    return args


def split_tensors(model, mesh):
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel,
        parallelize_module)

    for block in model.h:
        parallelize_module(block, mesh, {
            "attn.c_attn": ColwiseParallel(),
            "attn.c_proj": RowwiseParallel(),
            "c_fc": ColwiseParallel(),
            "c_proj": RowwiseParallel()})
    parallelize_module(model, mesh, {
        "wte": RowwiseParallel(input_layouts=Replicate()),
        "head": PrepareModuleInput(input_layouts=Replicate(),
                                   desired_input_layouts=Replicate())})
    model.head.weight = model.wte.weight
    assert model.head.weight.placements == (Shard(0),)


def distribute(torch, model, args):
    """The model, split as asked for, and a context for its steps."""
    import contextlib

    mesh = torch.distributed.init_device_mesh("cpu", (args.devices,))
    if args.split == "ddp":
        return torch.nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True,
            static_graph=True), contextlib.nullcontext
    if args.split == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for block in model.h:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh), contextlib.nullcontext
    from torch.distributed.tensor.parallel import loss_parallel
    split_tensors(model, mesh)
    return model, loss_parallel


def make_step(torch, rank, args):
    """The step of one process, and facts about it."""
    import gpt2_model

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://{args.address}", rank=rank,
        world_size=args.devices)
    whole = args.split == "tensor"
    model = gpt2_model.GPT2(args.vocab, args.positions, args.layers,
                            args.heads, args.width, by_head=whole)
    count = sum(weight.numel() for weight in model.parameters())
    model, context = distribute(torch, model, args)
    groups = gpt2_model.groups(model)
    optimizer, form = stepper.fastest(
        lambda **kw: torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95),
                                       eps=1e-8, **kw))
    source = torch.Generator().manual_seed(args.seed)
    rows = slice(0, args.batch)
    if not whole:
        rows = slice(rank * args.batch // args.devices,
                     (rank + 1) * args.batch // args.devices)

    def step():
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1),
                               generator=source)[rows]
        with context(), stepper.autocast(torch, args):
            loss = model(tokens[:, :-1].contiguous(),
                         tokens[:, 1:].contiguous())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, {"parameters": count, "optimizer": f"adamw-{form}"}


def follow(rank, args, pipe):
    """A process other than the first: a step for each word in the pipe."""
    torch = stepper.prepare(args)
    step, _ = make_step(torch, rank, args)
    while pipe.recv():
        step()
    torch.distributed.destroy_process_group()


def main():
    import multiprocessing

    args = arguments()
    torch = stepper.prepare(args)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", args.interface)
    if args.rank is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            args.address = f"127.0.0.1:{free.getsockname()[1]}"
    others, pipes = [], []
    fresh = multiprocessing.get_context("spawn")
    for rank in range(1, args.devices if args.rank is None else 1):
        mine, theirs = fresh.Pipe()
        other = fresh.Process(target=follow, args=(rank, args, theirs))
        other.start()
        others.append(other)
        pipes.append(mine)
    own_step, facts = make_step(torch, args.rank or 0, args)

    def step():
        for pipe in pipes:
            pipe.send(True)
        return own_step()

    stepper.drive(args, step, args.batch * args.seq, "tokens_per_second", {
        "model": "gpt2", "split": args.split, "devices": args.devices,
        "batch": args.batch, "seq": args.seq, **facts})
    for pipe in pipes:
        pipe.send(False)
    torch.distributed.destroy_process_group()
    for other in others:
        other.join()


if __name__ == "__main__":
    main()
