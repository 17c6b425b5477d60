"""A mask as each library wants it, and back."""

from pellucid.masks.conventions.table import CONVENTIONS, export, read
from pellucid.masks.conventions.terms import BlindRows, Convention, Given, Target

__all__ = ["CONVENTIONS", "BlindRows", "Convention", "Given", "Target", "export", "read"]
