#!/usr/bin/env python3
"""Time training steps of ResNet-18 in plain PyTorch on the CPU.

One step is: forward, cross entropy, backward, SGD with momentum 0.9,
gradients dropped.  Weights and images are random.  See stepper.py for the
output and for the interactive protocol.
"""

import stepper


def arguments():
    parser = stepper.base_parser(__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=64,
                        help="height and width of the images")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--channels-last", action="store_true",
                        help="keep images and weights in NHWC order")
    return parser.parse_args()


ARGS = arguments()
torch = stepper.prepare(ARGS)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def conv(inputs, outputs, size, stride=1):
    """A convolution without bias that keeps the size at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class Basic(nn.Module):
    """The two-convolution residual block."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        short = x if self.downsample is None else self.downsample(x)
        return F.relu(y + short, inplace=True)


class ResNet18(nn.Module):
    """ResNet-18 with the ImageNet stem (7x7 stride 2, then max pooling)."""

    def __init__(self, classes):
        super().__init__()
        self.conv1 = conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        stages, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [Basic(inputs, outputs, stride),
                       Basic(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out",
                                        nonlinearity="relu")

    def forward(self, images, labels):
        """The mean cross entropy of the batch."""
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        x = self.stages(F.max_pool2d(x, 3, 2, 1))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        return F.cross_entropy(self.fc(x), labels)


def main():
    args = ARGS
    model = ResNet18(args.classes)
    whole = args.precision == "bf16" and args.bf16_mode == "full"
    kind = torch.bfloat16 if whole else torch.float32
    order = (torch.channels_last if args.channels_last
             else torch.contiguous_format)
    model = model.to(dtype=kind, memory_format=order)
    count = sum(weight.numel() for weight in model.parameters())
    optimizer, form = stepper.fastest(
        lambda **kw: torch.optim.SGD(model.parameters(), lr=args.lr,
                                     momentum=0.9, **kw))
    forward = stepper.compiled(torch, model, args)
    source = torch.Generator().manual_seed(args.seed)
    # The images are made once: making them costs time that is no training.
    images = torch.randn(args.batch, 3, args.size, args.size,
                         generator=source)
    images = images.to(dtype=kind, memory_format=order)
    labels = torch.randint(args.classes, (args.batch,), generator=source)

    def step():
        with stepper.autocast(torch, args):
            loss = forward(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    stepper.drive(args, step, args.batch, "images_per_second", {
        "model": "resnet18", "parameters": count, "optimizer": f"sgd-{form}",
        "batch": args.batch, "size": args.size,
        "channels_last": args.channels_last})


if __name__ == "__main__":
    main()
