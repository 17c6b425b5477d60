"""The module that a command names: found in a file or a package, and built where the name is a class or a factory's."""

import difflib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from pellucid.check.chance import fixed
from pellucid.errors import CheckError

__all__ = ["required", "target"]

SHOWN = 8  # names that are listed where none is near
LONGEST = 200  # characters of somebody else's error


@contextmanager
def target(written: str, seed: int = 0) -> Iterator[nn.Module]:
    """The module of `FILE.py:NAME` or `package.module:NAME`, while its file is loaded.

    The file's folder, or of a package the current one, is where its imports are looked for; afterwards Python knows as
    little of the file, and of what it imported from there, as before. A file inside a package is loaded as a part of it.

    Args:
        written: NAME is a module, or a class or function without required arguments that makes one; after a dot stands
            what is inside: a class in a class, or a submodule.
        seed: the random numbers that the file and the module begin with; the common ones go on undisturbed.

    Yields:
        The module, as it was built.

    Raises:
        CheckError: there is no such file, package or name, it cannot be loaded or built, or is no module.

    >>> with target("torch.nn:Identity") as module:
    ...     print(module)
    Identity()
    """
    place, _, name = written.rpartition(":")
    if not place or not name:
        raise CheckError(
            f"'{written}' was given, but a check needs a place and a name in it; write FILE.py:NAME or package.module:NAME"
        )
    home = _home(place)
    with home.known():
        with fixed(seed):
            module = _built(_inside(home.loaded(), name, written, home), written, home)
        yield module


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a module is looked for.

    Attributes:
        place: as it was written.
        name: what it is imported as.
        file: the file, where one was named.
        folders: where its own imports are looked for.
    """

    place: str
    name: str
    file: Path | None
    folders: tuple[Path, ...]

    @contextmanager
    def known(self) -> Iterator[None]:
        """Let imports be found in the folders; afterwards forget what was found there, and write nothing into them."""
        modules, path, unwritten = set(sys.modules), list(sys.path), sys.dont_write_bytecode
        sys.path[:0] = map(str, self.folders)
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:], sys.dont_write_bytecode = path, unwritten
            new = set(sys.modules) - modules
            tops = {name: sys.modules.get(name.partition(".")[0]) for name in new}
            for name in new:
                if _folder(tops[name]) in self.folders:
                    del sys.modules[name]

    def loaded(self) -> ModuleType:
        """What the file or the package holds.

        Raises:
            CheckError: there is no such package, or loading it fails.
        """
        try:
            if self.file is None or "." in self.name:
                return importlib.import_module(self.name)
            spec = importlib.util.spec_from_file_location(self.name, self.file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[self.name] = module  # dataclasses look for their module there
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
            if self.file is None and missing and f"{self.name}.".startswith(f"{missing}."):
                raise CheckError(
                    f"there is no package '{self.place}' in this folder or among those installed; give FILE.py:NAME, or "
                    "install it"
                ) from None
            raise CheckError(f"{self.place} cannot be loaded ({self.said(error)}); mend it there") from error
        return module

    def said(self, error: BaseException) -> str:
        """What an error says, and the line of the user's own files from which it came."""
        text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            places.append((error.filename, error.lineno))
        own = [(file, line) for file, line in places if Path(file).resolve().parent in self.folders]
        where = f"line {own[-1][1]} of {Path(own[-1][0]).name}: " if own else ""
        return f"{where}{type(error).__name__}: {text}" if text else f"{where}{type(error).__name__}"


def _home(place: str) -> _Home:
    """Where a place is: a file where it looks like one, else a package.

    Raises:
        CheckError: there is no such file.
    """
    file = Path(place)
    if not (place.endswith(".py") or "/" in place or file.exists()):
        return _Home(place, place, None, (Path.cwd(),))
    if not file.is_file() or file.suffix != ".py":
        what = "is no file of Python" if file.exists() else "is not there"
        near = difflib.get_close_matches(file.name, [one.name for one in file.parent.glob("*.py")], n=1)
        advice = f"did you mean '{near[0]}'?" if near else "give FILE.py:NAME, or package.module:NAME of one installed"
        raise CheckError(f"{place} {what}; {advice}")
    file = file.resolve()
    packages, root = [file.stem] * (file.stem != "__init__"), file.parent
    while (root / "__init__.py").is_file():
        packages.insert(0, root.name)
        root = root.parent
    name = ".".join(packages)
    if name in sys.modules and "." not in name:
        name = f"checked_{name}"
    return _Home(place, name, file, tuple(dict.fromkeys((root, file.parent))))


def _folder(module: ModuleType | None) -> Path | None:
    """The folder in which a top module or package was found, if there is one."""
    inside = list(getattr(module, "__path__", ()))
    file = inside[0] if inside else getattr(module, "__file__", None)
    return Path(file).resolve().parent if file else None


def _inside(thing: Any, name: str, written: str, home: _Home) -> Any:
    """What a name with dots stands for; a class whose instances hold the next name is built on the way."""
    for part in name.split("."):
        if isinstance(thing, type) and issubclass(thing, nn.Module) and not hasattr(thing, part):
            thing = _built(thing, written, home)
        if not hasattr(thing, part):
            raise CheckError(f"'{part}' of {written} is not there; {_nearest(part, thing)}")
        thing = getattr(thing, part)
    return thing


def _nearest(part: str, thing: Any) -> str:
    """Advice on a name that is not there."""
    names = [name for name in dir(thing) if not name.startswith("_")]
    near = difflib.get_close_matches(part, names, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    fit = [name for name in names if _fits(getattr(thing, name, None), getattr(thing, "__name__", ""))]
    if isinstance(thing, nn.Module):
        fit = [name for name, _ in thing.named_children()]
    more = " ..." if len(fit) > SHOWN else ""
    return (
        f"it has {', '.join(fit[:SHOWN])}{more}" if fit else "it has no module, and nothing that makes one; write one"
    )


def _fits(value: Any, home: str) -> bool:
    """Whether a value may be a module's name: a module, a class of modules, or a function of the file's own."""
    if isinstance(value, nn.Module) or (isinstance(value, type) and issubclass(value, nn.Module)):
        return True
    return inspect.isfunction(value) and value.__module__ == home


def _built(thing: Any, written: str, home: _Home) -> nn.Module:
    """The module itself, or what a class or a factory makes.

    Raises:
        CheckError: it is no module, wants arguments, or raises when it is built.
    """
    if isinstance(thing, nn.Module):
        return thing
    no_module = isinstance(thing, type) and not issubclass(thing, nn.Module)
    if no_module or not callable(thing):
        what = "class that is no nn.Module" if no_module else type(thing).__name__
        raise CheckError(f"{written} is a {what}; name a module, its class, or a function that makes one")
    wants = required(thing)
    if wants:
        raise CheckError(
            f"{written} wants {', '.join(wants)}; write a function without arguments that makes the module, and name that"
        )
    try:
        made = thing()
    except (Exception, SystemExit) as error:
        raise CheckError(f"{written} cannot be built ({home.said(error)}); mend it there") from error
    if not isinstance(made, nn.Module):
        raise CheckError(f"{written} makes a {type(made).__name__}; name a function that makes an nn.Module")
    return made


def required(thing: Any) -> list[str]:
    """The arguments without which something cannot be called.

    >>> required(lambda x, lengths, scale=2.0: x)
    ['x', 'lengths']
    """
    try:
        known = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return []
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in known if one.default is one.empty and one.kind not in open_ended]
