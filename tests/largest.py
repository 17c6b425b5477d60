"""How large a tensor is that an operation of torch hands out, for the tests of what is held on the way."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Largest"]


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the cells of the largest tensor that any operation hands out, and the bytes of the largest that is there.

    What is expanded has all its cells, and its numbers once.
    """

    cells = size = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.cells = max([self.cells, *(leaf.numel() for leaf in made)])
        self.size = max([self.size, *(leaf.untyped_storage().nbytes() for leaf in made)])
        return out
