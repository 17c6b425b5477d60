"""The plan of the house as functions: who may import whom, by floor; each says in words what breaks the plan.

`test_house.py` runs each of them over the repository, and over a bad example, where it must find something. A path
is written from the root of the repository, as in `src/pellucid/masks/kinds.py`.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

# To add a room, add it here at its floor; a file in a folder belongs to the folder's room.
FLOORS = {
    "errors": 0,
    "shapes": 0,
    "version": 0,
    "disk": 1,
    "device": 1,
    "signals": 1,
    "config": 1,
    "text": 2,
    "masks": 2,
    "model": 3,
    "run": 4,
    "training": 5,
    "decoding": 5,
    "interop": 6,
    "check": 6,
    "view": 6,
    "display": 7,  # how a training looks while it runs; handed to a job, which does not know it
    "jobs": 7,
    "__init__": 7,  # the face of the package: hands on what the rooms below make
    "cli": 8,
    "__main__": 9,
}

# Who never imports whom, whatever their floors, at the top of a file or inside a function.
STRANGERS = (
    ("text", "masks", "masks take plain lengths"),
    ("masks", "text", "masks take plain lengths"),
    ("masks", "model", "a kernel asks a mask for its structure, never the other way round"),
    ("training", "decoding", "validation is handed to the trainer"),
    ("decoding", "training", "a search needs no loss"),
    ("decoding.search", "masks", "search knows no model"),
    ("decoding.search", "model", "search knows no model"),
    ("decoding.hypotheses", "masks", "search knows no model"),
    ("decoding.hypotheses", "model", "search knows no model"),
    ("decoding.chances", "model", "search knows no model"),
    ("decoding.sampling", "model", "search knows no model"),
    ("decoding.stream", "model", "search knows no model"),
)
GUESTS, HOSTS = ("check", "view"), ("jobs", "cli", "__init__", "__main__")
WITHOUT_TORCH = ("errors", "version", "config", "text.corpus", "text.tokenizer")
NAMELESS = {"util", "utils", "helper", "helpers", "common", "misc"}
FACE = "src/pellucid/__init__.py"
LAZY = ("jobs", "cli", "__main__")  # may import a lower floor inside a function, so that `--help` is instant

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Import(NamedTuple):
    """One name that a file imports: in full, where, and whether only when a function runs."""

    name: str
    line: int
    lazy: bool


def module_of(path: str) -> str:
    """A file's name in the package: `masks.kinds`, `masks` for the folder's `__init__.py`, `__init__` for the face."""
    parts = PurePosixPath(path).with_suffix("").parts[2:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def room_of(module: str) -> str:
    """The room of a module: its first part."""
    return module.partition(".")[0]


def inside(module: str, place: str) -> bool:
    """Whether a module is a place or in it."""
    return module == place or module.startswith(place + ".")


def imports(source: str) -> list[Import]:
    """Every name imported in a file, `pellucid.masks.Causal` for `from pellucid.masks import Causal`."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                origin = "." * child.level + (child.module or "")
                yield from (Import(f"{origin}.{alias.name}", child.lineno, lazy) for alias in child.names)
            yield from visit(child, lazy or isinstance(child, Function | ast.Lambda))

    return list(visit(ast.parse(source), lazy=False))


def own_imports(source: str) -> list[Import]:
    """What a file imports from Pellucid, without the leading `pellucid.`."""
    ours = [one for one in imports(source) if inside(one.name, "pellucid")]
    return [one._replace(name=one.name.removeprefix("pellucid").removeprefix(".")) for one in ours]


def dotted(node: ast.AST) -> str:
    """`torch.nn.functional` for the expression of that name, and nothing for an expression that is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


# --- the plan of the house ---------------------------------------------------------------------------------


def on_the_map(path: str, source: str) -> list[str]:
    """Every file belongs to a room of the plan, and no room is a drawer for odds and ends."""
    nameless = NAMELESS.intersection(PurePosixPath(path).with_suffix("").parts)
    found = [f"{path}: '{name}' says nothing about what is inside" for name in nameless]
    if not nameless and room_of(module_of(path)) not in FLOORS:
        found.append(f"{path}: not a room of the plan; give it a floor in FLOORS")
    return found


def floors(path: str, source: str) -> list[str]:
    """A file imports from a lower floor or its own folder; inside a function only from its folder, or to start fast."""
    here, found = room_of(module_of(path)), []
    for name, line, lazy in own_imports(source):
        there = room_of(name)
        if there not in FLOORS:
            found.append(f"{path}:{line}: imports {name or 'pellucid'} from the face; name its room")
        elif there == here:
            continue
        elif FLOORS[there] >= FLOORS.get(here, 0):
            found.append(f"{path}:{line}: {here} imports {name}, which is not on a lower floor")
        elif lazy and here not in LAZY:
            found.append(f"{path}:{line}: imports {name} inside a function; import it at the top")
    relative = [one for one in imports(source) if one.name.startswith(".")]
    return found + [f"{path}:{one.line}: imports {one.name}; write the whole name" for one in relative]


def strangers(path: str, source: str) -> list[str]:
    """Rooms that never meet do not import each other, guests are not depended on, and settings know no torch."""
    module, found = module_of(path), []
    for name, line, _ in own_imports(source):
        for one, other, reason in STRANGERS:
            if inside(module, one) and inside(name, other):
                found.append(f"{path}:{line}: {one} never imports {other}: {reason}")
        guest = room_of(name)
        if guest in GUESTS and room_of(module) not in (guest, *HOSTS):
            found.append(f"{path}:{line}: {guest} is a guest, which only {', '.join(HOSTS)} may import")
    if module in WITHOUT_TORCH:
        torch = [one for one in imports(source) if inside(one.name, "torch")]
        found += [f"{path}:{one.line}: {module} imports torch, which it does without" for one in torch]
    return found


def circles(sources: Mapping[str, str]) -> list[str]:
    """No file imports, at its top, one that imports it, however long the way."""
    modules = {module_of(path) for path in sources}
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        names = [one.name for one in own_imports(source) if not one.lazy]
        graph[module_of(path)] = {name if name in modules else name.rpartition(".")[0] for name in names}
    found, clear = [], set[str]()

    def visit(module: str, way: tuple[str, ...]) -> None:
        if module in way:
            found.append(" -> ".join((*way[way.index(module) :], module)))
        elif module not in clear:
            for other in sorted(graph.get(module, ())):
                visit(other, (*way, module))
            clear.add(module)

    for module in sorted(graph):
        visit(module, ())
    return found


def only_hands_names_on(path: str, source: str) -> list[str]:
    """An `__init__.py` holds a docstring, imports and `__all__`; the package's own may put its imports off."""
    if PurePosixPath(path).name != "__init__.py":
        return []
    found = []
    for node in ast.parse(source).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and [dotted(target) for target in node.targets] == ["__all__"]
        put_off = path == FACE and puts_imports_off(node)
        if not (docstring or names or put_off or isinstance(node, ast.Import | ast.ImportFrom)):
            found.append(f"{path}:{node.lineno}: an __init__.py only hands names on")
    return found


def puts_imports_off(node: ast.stmt) -> bool:
    """Whether a statement helps to import a name when it is first asked for (PEP 562), and does nothing else.

    Imports for the type checker do, the table `ROOMS`, and out of the type checker's sight `__getattr__` and `__dir__`.
    """
    if isinstance(node, ast.Assign):
        return [dotted(target) for target in node.targets] == ["ROOMS"]
    match ast.unparse(node.test) if isinstance(node, ast.If) and not node.orelse else "":
        case "TYPE_CHECKING":
            return isinstance(node, ast.If) and all(isinstance(one, ast.ImportFrom) for one in node.body)
        case "not TYPE_CHECKING":
            return isinstance(node, ast.If) and all(
                isinstance(one, Function) and one.name in ("__getattr__", "__dir__") for one in node.body
            )
    return False
