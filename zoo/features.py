"""Feature pyramids: ``features_only=True`` for every family that offers ``forward_intermediates``."""

from collections.abc import Sequence

from timm.models import FeatureInfo
from torch import Tensor, nn


def take_indices(count: int, indices: int | Sequence[int] | None) -> list[int]:
    """Positions among ``count`` outputs: None all, an int the last so many, a sequence with negatives from the end.

    Raises:
        ValueError: when one is out of range, with the allowed range.

    >>> take_indices(4, (1, -1)), take_indices(4, 2), take_indices(4, None)
    ([1, 3], [2, 3], [0, 1, 2, 3])
    """
    if indices is None:
        return list(range(count))
    if isinstance(indices, int):
        if not 1 <= indices <= count:
            raise ValueError(f"out_indices: the last {indices} of {count} outputs do not exist; ask for 1 to {count}")
        return list(range(count - indices, count))
    bad = [i for i in indices if not -count <= i < count]
    if bad or not indices:
        raise ValueError(f"out_indices: {count} outputs, so {-count} to {count - 1} are allowed; got {indices}")
    return [i % count for i in indices]


class FeatureNet(nn.Module):
    """A backbone that gives a list of maps, (B, C, H, W) each, in the order of ``out_indices``.

    Attributes:
        feature_info: timm's FeatureInfo; ``channels()`` and ``reduction()`` are those of the outputs.
        model: the backbone; what lies behind the last output is pruned.
    """

    def __init__(self, model: nn.Module, out_indices: Sequence[int] | None = None):
        super().__init__()
        info = list(model.feature_info)  # type: ignore[arg-type]
        self.out_indices = take_indices(len(info), out_indices)
        model.prune_intermediate_layers(self.out_indices, prune_norm=True, prune_head=True)  # type: ignore[operator]
        self.model = model
        self.feature_info = FeatureInfo(info, tuple(self.out_indices))

    def forward(self, x: Tensor) -> list[Tensor]:
        has_norms = getattr(self.model, "extra_norms", None) is not None
        return self.model.forward_intermediates(  # type: ignore[operator]
            x, indices=self.out_indices, norm=has_norms, intermediates_only=True
        )

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """See the backbone's."""
        self.model.set_grad_checkpointing(enable)  # type: ignore[operator]


def count_parameters(model: nn.Module) -> int:
    """Parameters of a model, tied ones once.

    >>> count_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in model.parameters())
