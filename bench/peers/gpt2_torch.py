#!/usr/bin/env python3
"""Time training steps of GPT-2 124M in plain PyTorch on the CPU.

One step is: forward, cross entropy, backward, AdamW, gradients dropped.
Weights and tokens are random; there is no dropout and no clipping.  See
stepper.py for the output and for the interactive protocol.
"""

import stepper


def arguments():
    parser = stepper.base_parser(__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--positions", type=int, default=1024)
    return parser.parse_args()


def main():
    args = arguments()
    torch = stepper.prepare(args)
    import gpt2_model

    model = gpt2_model.GPT2(args.vocab, args.positions, args.layers,
                            args.heads, args.width)
    if args.precision == "bf16" and args.bf16_mode == "full":
        model = model.to(torch.bfloat16)
    count = sum(weight.numel() for weight in model.parameters())
    groups = gpt2_model.groups(model)
    optimizer, form = stepper.fastest(
        lambda **kw: torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95),
                                       eps=1e-8, **kw))
    forward = stepper.compiled(torch, model, args)
    source = torch.Generator().manual_seed(args.seed)

    def step():
        tokens = torch.randint(args.vocab, (args.batch, args.seq + 1),
                               generator=source)
        with stepper.autocast(torch, args):
            loss = forward(tokens[:, :-1].contiguous(),
                           tokens[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    stepper.drive(args, step, args.batch * args.seq, "tokens_per_second", {
        "model": "gpt2", "parameters": count, "optimizer": f"adamw-{form}",
        "batch": args.batch, "seq": args.seq})


if __name__ == "__main__":
    main()
