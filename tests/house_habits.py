"""The habits of the house as functions: each takes a file's path and source, and says in words what breaks a habit.

As in `house_plan.py`, a path is written from the root of the repository.
"""

import ast
import re
from collections.abc import Iterator, Mapping

from house_plan import Function, dotted, imports, module_of, room_of

MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 300, 40, 8
MAY_TAKE_MORE = (
    "__init__",
    "attend",
    "translate",
    "translate_lines",
    "translations",
    "train",
    "to",
    "beam_search",
    "sample",
)  # and the commands in cli/; what is more is keyword-only
# Reading one of these runs code that the file holds.
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"torch.load", "torch.save", "eval", "exec"}
BARE_ERRORS = {
    "ValueError",
    "TypeError",
    "RuntimeError",
    "KeyError",
    "IndexError",
    "OSError",
    "Exception",
    "NotImplementedError",
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|(?i:placeholder|for now))\b")
COMPARING = {"all", "allclose", "any", "array_equal", "endswith", "equal", "isclose", "isinstance", "startswith"}
EXPECTING = {"raises", "warns", "deprecated_call", "fail", "raise_for_failure"}
SECOND_SENTENCE = re.compile(r"[.!?]\s+[A-Z]")


def functions(source: str) -> Iterator[Function]:
    """Every function and method of a file."""
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))


# --- the look of a room -------------------------------------------------------------------------------------


def opening(path: str, source: str) -> list[str]:
    """A file opens with one sentence that says what it is for."""
    first = " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())
    if first.endswith(".") and not SECOND_SENTENCE.search(first):
        return []
    return [f"{path}:1: opens with '{first[:60]}', not with one sentence and its full stop"]


def sizes(path: str, source: str) -> list[str]:
    """Files, functions and parameter lists stay small; a function's docstring is not counted, its comments are."""
    lines = len(source.rstrip("\n").split("\n"))
    found = [f"{path}: {lines} lines, at most {MAX_LINES}; split it along a noun"] if lines > MAX_LINES else []
    for node in functions(source):
        where = f"{path}:{node.lineno}: {node.name}"
        first, given = node.body[0], node.args
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if ast.get_docstring(node) is not None:
            length -= (first.end_lineno or first.lineno) - first.lineno + 1
        if length > MAX_FUNCTION_LINES:
            found.append(f"{where} has {length} lines, at most {MAX_FUNCTION_LINES}")
        open_to_place = [one.arg for one in (*given.posonlyargs, *given.args) if one.arg not in ("self", "cls")]
        more = node.name in MAY_TAKE_MORE or room_of(module_of(path)) == "cli"
        counted = len(open_to_place) + (0 if more else len(given.kwonlyargs))
        if counted > MAX_PARAMETERS:
            found.append(f"{where} takes {counted} parameters, at most {MAX_PARAMETERS}")
    return found


def finished(path: str, source: str) -> list[str]:
    """Nothing is left for later."""
    lines = enumerate(source.split("\n"), start=1)
    return [f"{path}:{number}: '{word[0]}'" for number, line in lines if (word := UNFINISHED.search(line))]


# --- habits -------------------------------------------------------------------------------------------------


def safe(path: str, source: str) -> list[str]:
    """Nothing runs what a file holds, splits text at odd characters, or hides the annotations from the checks."""
    found = []
    for one in imports(source):
        if one.name.partition(".")[0] in UNSAFE_MODULES:
            found.append(f"{path}:{one.line}: {one.name} runs what a file holds; use safetensors or TOML")
        if one.name == "__future__.annotations":
            found.append(f"{path}:{one.line}: annotations become strings, which jaxtyping cannot check")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and dotted(node.func) in UNSAFE_CALLS:
            found.append(f"{path}:{node.lineno}: {dotted(node.func)} runs what a file holds")
        if isinstance(node, ast.Attribute) and node.attr == "splitlines":
            found.append(f"{path}:{node.lineno}: splitlines breaks lines at U+2028 and others; split at \\n")
    return found


def of_paramspec(keywords: ast.arg) -> bool:
    """Whether `**kwargs` is annotated as `Arguments.kwargs`, the keywords of a ParamSpec."""
    return isinstance(keywords.annotation, ast.Attribute) and keywords.annotation.attr == "kwargs"


def open_keywords(path: str, source: str) -> list[str]:
    """No `**kwargs` that swallows a slip; those of the settings and of `masks.read` end where a name is refused.

    Those of a ParamSpec swallow none: they are the keywords of another function, and a type checker knows them.
    """
    if module_of(path).split(".")[0] == "config" or module_of(path) == "masks.conventions.table":
        return []
    takers = [node for node in functions(source) if node.args.kwarg and not of_paramspec(node.args.kwarg)]
    return [f"{path}:{node.lineno}: {node.name} takes any keyword; name them" for node in takers]


def written(message: ast.expr) -> str:
    """What stands in a message as it is written, with 0 for each value that is put in."""
    if isinstance(message, ast.JoinedStr):
        return "".join(written(part) for part in message.values)
    if isinstance(message, ast.BinOp):
        return written(message.left) + written(message.right)
    return message.value if isinstance(message, ast.Constant) and isinstance(message.value, str) else "0"


def errors(path: str, source: str) -> list[str]:
    """Errors come from the tree, and a message is one sentence without its full stop, on one line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call | ast.Name)):
            continue
        where = f"{path}:{node.lineno}"
        error = dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)
        if (
            error in BARE_ERRORS and module_of(path).split(".")[0] != "config"
        ):  # pydantic's validators answer by ValueError
            found.append(f"{where}: raises {error}; raise one of pellucid.errors")
        for argument in node.exc.args if isinstance(node.exc, ast.Call) else ():
            message = written(argument)
            if message.endswith(".") or "\n" in message or SECOND_SENTENCE.search(message):
                found.append(f"{where}: '{message[:60]}' is not one sentence without its full stop")
    return found


def overriding(sources: Mapping[str, str]) -> list[str]:
    """Classes are abstract or final: no class replaces a method of one of ours that stands by itself.

    An abstract class may give a method a default, which its children replace.
    """
    classes: dict[str, ast.ClassDef] = {}
    for source in sources.values():
        classes |= {node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)}

    def above(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
        for base in node.bases:
            plain = base.value if isinstance(base, ast.Subscript) else base
            parent = classes.get(dotted(plain).rpartition(".")[2])
            if parent is not None and parent is not node:
                yield from (parent, *above(parent))

    def methods(node: ast.ClassDef) -> dict[str, Function]:
        return {one.name: one for one in node.body if isinstance(one, Function)}

    def abstract(method: Function) -> bool:
        says_so = any(dotted(one).rpartition(".")[2] == "abstractmethod" for one in method.decorator_list)
        return says_so or all(isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) for one in method.body)

    def stands(node: ast.ClassDef) -> bool:
        every = [one for family in (node, *above(node)) for one in methods(family).values()]
        return {one.name for one in every if abstract(one)} <= {one.name for one in every if not abstract(one)}

    return [
        f"{name}.{method} replaces {parent.name}.{method}"
        for name, node in classes.items()
        for parent in above(node)
        if stands(parent)
        for method in sorted(methods(node).keys() & methods(parent).keys())
    ]


# --- tests that can fail ------------------------------------------------------------------------------------


def dropped_result(path: str, source: str) -> list[str]:
    """No comparison, and no report of a check, stands alone as a statement, unless an error is expected of it."""
    found = []

    def expects(node: ast.AST) -> bool:
        calls = [one.context_expr for one in node.items] if isinstance(node, ast.With) else []
        return any(isinstance(call, ast.Call) and dotted(call.func).rpartition(".")[2] in EXPECTING for call in calls)

    def dropped(value: ast.expr) -> bool:
        called = dotted(value.func) if isinstance(value, ast.Call) else ""
        negation = isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
        compared = isinstance(value, ast.Compare | ast.BoolOp) or negation
        return compared or called.rpartition(".")[2] in COMPARING or "check" in called.split(".")[:-1]

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Expr) and dropped(child.value):
                found.append(f"{path}:{child.lineno}: the result is dropped; assert it")
            if not expects(child):
                visit(child)

    visit(ast.parse(source))
    return found


def idle_test(path: str, source: str) -> list[str]:
    """Every test asserts something, expects an error, or calls a function of its file that does."""

    def calls(node: Function) -> set[str]:
        return {dotted(one.func).rpartition(".")[2] for one in ast.walk(node) if isinstance(one, ast.Call)}

    def asserts(node: Function) -> bool:
        expected = any(call in EXPECTING or call.startswith("assert") for call in calls(node))
        return expected or any(isinstance(one, ast.Assert) for one in ast.walk(node))

    every = {node.name: node for node in functions(source)}
    asserting = {name for name, node in every.items() if asserts(node)}
    for _ in every:  # a call of a call of ... one that asserts
        asserting |= {name for name, node in every.items() if calls(node) & asserting}
    idle = [node for name, node in every.items() if name.startswith("test_") and name not in asserting]
    return [f"{path}:{node.lineno}: {node.name} cannot fail; assert something" for node in idle]
