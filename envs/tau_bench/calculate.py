"""The calculator of both domains, bounded.

The original evaluates a checked text with Python's `eval` and rounds to two places; a tower of powers hangs
it. Here the same syntax tree is evaluated node by node, with limits on integers and on their products. What
exceeds a limit is answered as Python answers an integer too large for a float, which it would be in the
original, too, unless later operations make it small again.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

_ALLOWED = "0123456789+-*/(). "
_TOO_LARGE = "int too large to convert to float"
_MAX_LENGTH = 20_000
_MAX_BITS = 100_000
# Sum over one expression of the products of the operands' lengths in bits; about 0.1 s.
_MAX_WORK = 10**11

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}


def calculate(expression: Any) -> str:
    """The value of an arithmetic expression, rounded to two places, as text.

    Raises what Python raises while evaluating it, with the same message (ArithmeticError, MemoryError,
    RecursionError, SyntaxError, TypeError), and ValueError for a text of more than 20,000 characters.
    """
    if not all(char in _ALLOWED for char in expression):
        return "Error: invalid characters in expression"
    if not isinstance(expression, str):
        raise TypeError("eval() arg 1 must be a string, bytes or code object")
    if len(expression) > _MAX_LENGTH:
        raise ValueError(f"expression has {len(expression)} characters, allowed are {_MAX_LENGTH}")
    with warnings.catch_warnings():
        # Python's compiler warns of calls such as `5(3)`.
        warnings.simplefilter("ignore", SyntaxWarning)
        return str(round(float(_value(_parse(expression))), 2))


def _parse(text: str) -> ast.expr:
    source = text.lstrip(" ")
    # Reports what parsing alone does not, such as too deep a nesting; folding of constants is bounded.
    compile(source, "<string>", "eval")
    return ast.parse(source, "<string>", "eval").body


def _value(root: ast.expr) -> Any:
    """Evaluate without recursion: operands first, from left to right as Python does."""
    todo: list[tuple[ast.AST, bool]] = [(root, False)]
    values: list[Any] = []
    work = 0
    while todo:
        node, ready = todo.pop()
        operands = _operands(node)
        if operands and not ready:
            todo.append((node, True))
            todo.extend((operand, False) for operand in reversed(operands))
            continue
        start = len(values) - len(operands)
        arguments = values[start:]
        del values[start:]
        if isinstance(node, ast.BinOp):
            work += _work(node.op, *arguments)
            if work > _MAX_WORK:
                raise OverflowError(_TOO_LARGE)
        values.append(_apply(node, arguments))
    return values[0]


def _operands(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Call):
        plain = [item.value if isinstance(item, ast.Starred) else item for item in node.args]
        return [node.func, *plain, *(keyword.value for keyword in node.keywords)]
    return []


def _apply(node: ast.AST, arguments: list[Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](*arguments)
    if isinstance(node, ast.UnaryOp):
        return _UNARY[type(node.op)](*arguments)
    if isinstance(node, ast.Call):
        return _call(node, arguments)
    return ast.literal_eval(node)


def _call(node: ast.Call, arguments: list[Any]) -> Any:
    """Let Python refuse to call a number: only constants are left in the tree that it gets."""
    known = iter([ast.Constant(value) for value in arguments])
    call = ast.Call(
        func=next(known),
        args=[
            ast.Starred(next(known), ast.Load()) if isinstance(item, ast.Starred) else next(known)
            for item in node.args
        ],
        keywords=[ast.keyword(None, next(known)) for _ in node.keywords],
    )
    tree = ast.fix_missing_locations(ast.Expression(call))
    return eval(compile(tree, "<string>", "eval"), {"__builtins__": {}}, {})


def _work(operation: ast.operator, left: Any, right: Any) -> int:
    """Cost of an operation of two integers in bit products; OverflowError if the result is too long."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return 0
    bits, other = left.bit_length(), right.bit_length()
    if isinstance(operation, ast.Pow):
        if right < 0 or bits < 2:
            return 0
        if right > _MAX_BITS or bits * right > _MAX_BITS:
            raise OverflowError(_TOO_LARGE)
        return (bits * right) ** 2
    if isinstance(operation, ast.Mult) and bits + other > _MAX_BITS:
        raise OverflowError(_TOO_LARGE)
    return bits * other
