"""What can go wrong, as one tree, so that a caller may catch as much or as little as it wants.

    PellucidError
    ├── ConfigError        a setting that does not exist, or a value it cannot take
    ├── DeviceError        a device with less memory than it was asked for
    ├── TextError          a text file that cannot be read as lines, or two that do not match
    ├── TokenizerError     a vocabulary that cannot be learned or read
    ├── MaskError          masks that cannot be combined, or a mask used as a truth value
    ├── ShapeError         tensors whose sizes do not fit together
    ├── PositionError      a position past the last one that a learned table knows
    ├── RunError           a run folder that cannot be written, read or resumed
    ├── TrainingError      a training that cannot go on
    ├── DecodingError      a search that was asked for something it cannot give
    ├── InteropError       somebody else's module that has no equal here
    └── CheckError         a check that cannot be made on what it was given
        └── CheckFailed    a check that was made, and failed

Every message is one sentence with three parts: what was given, what was needed, and what to do about it.
Where the fault lies in a file, the message names the file and the line.
"""


class PellucidError(Exception):
    """The root of every error that Pellucid raises for a user's slip."""


class ConfigError(PellucidError):
    """A setting that does not exist, or a value it cannot take."""


class DeviceError(PellucidError):
    """A device with less memory than it was asked for."""


class TextError(PellucidError):
    """A text file that cannot be read as lines, or two that do not match."""


class TokenizerError(PellucidError):
    """A vocabulary that cannot be learned or read."""


class MaskError(PellucidError):
    """Masks that cannot be combined, or a mask used as a truth value."""


class ShapeError(PellucidError):
    """Tensors whose sizes do not fit together."""


class PositionError(PellucidError):
    """A position past the last one that a learned table knows."""


class RunError(PellucidError):
    """A run folder that cannot be written, read or resumed."""


class TrainingError(PellucidError):
    """A training that cannot go on."""


class DecodingError(PellucidError):
    """A search that was asked for something it cannot give."""


class InteropError(PellucidError):
    """Somebody else's module that has no equal here."""


class CheckError(PellucidError):
    """A check that cannot be made on what it was given."""


class CheckFailed(CheckError, AssertionError):  # noqa: N818 - it reports a finding, not a slip
    """A check that was made, and failed; an AssertionError too, so that pytest shows it as a failure."""
