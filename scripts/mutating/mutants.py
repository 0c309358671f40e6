"""List the mutants of a file, by Cosmic Ray's operators, without the ones that change nothing or
only a limit.

Changes of annotations, of a class's declared properties, and of numbers in module constants are
left out: another limit is as right as the chosen one, and tests read it by its name. An operator is
replaced only by its neighbour and by its opposite: a test that notices `<=` instead of `<` also
notices `**`, and a few hundred of those would hide the rest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import cosmic_ray.plugins
import msgspec
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

_COMPARISONS = "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Is_IsNot IsNot_Is"
_BINARY = (
    "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_FloorDiv BitOr_BitAnd BitAnd_BitOr LShift_RShift RShift_LShift"
)
_OTHERS = (
    "AddNot ExceptionReplacer RemoveDecorator ReplaceAndWithOr ReplaceBreakWithContinue ReplaceContinueWithBreak "
    "ReplaceFalseWithTrue ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceUnaryOperator_Delete_Not ZeroIterationForLoop"
)
ARITHMETIC = (*(f"core/ReplaceBinaryOperator_{name}" for name in _BINARY.split()), "core/NumberReplacer")
EXCEPTIONS = "core/ExceptionReplacer"
OPERATORS = (
    *(f"core/ReplaceComparisonOperator_{name}" for name in _COMPARISONS.split()),
    *(f"core/{name}" for name in _OTHERS.split()),
    *ARITHMETIC,
)

Position = tuple[int, int]  # line from 1, column from 0
Span = tuple[Position, Position]


class Mutant(msgspec.Struct, frozen=True):
    """One change of one file."""

    path: Path  # relative to the root of the tree
    operator: str
    occurrence: int
    line: int

    def apply(self, source: str) -> str:
        """Return the file's text with the change."""
        mutated = mutate_code(source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence)
        assert mutated is not None, f"{self} is of another text"
        return str(mutated)

    def is_possible(self, source: str) -> bool:
        """Whether Cosmic Ray can make it: it cannot replace an exception that is named with its
        module.
        """
        try:
            self.apply(source)
        except AttributeError:
            return False
        return True


def find_mutants(root: Path, path: Path) -> Iterator[Mutant]:
    source = (root / path).read_text()
    passive, limits = _passive_spans(ast.parse(source)), _limits(ast.parse(source))
    tree = get_ast(source)
    for name in OPERATORS:
        operator, occurrence = cosmic_ray.plugins.get_operator(name)(), -1
        for node in ast_nodes(tree):
            for start, end in operator.mutation_positions(node):
                occurrence += 1
                left_out = [*passive, *(limits if name in ARITHMETIC else ())]
                if not any(first <= start and end <= last for first, last in left_out):
                    mutant = Mutant(path, name, occurrence, start[0])
                    if name != EXCEPTIONS or mutant.is_possible(source):
                        yield mutant


def _span(node: ast.expr | ast.stmt) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno or node.lineno, node.end_col_offset or 0)


def _passive_spans(tree: ast.Module) -> list[Span]:
    """Return the spans of annotations, which are not executed, and of class keywords such as
    frozen, which only forbid.
    """
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign() | ast.arg():
                found.append(node.annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.append(node.returns)
            case ast.ClassDef():
                found += [keyword.value for keyword in node.keywords]
    return [_span(node) for node in found if node is not None]


def _limits(tree: ast.Module) -> list[Span]:
    """Return the spans of assignments to module constants."""
    found: list[Span] = []
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        if names and all(name.isupper() for name in names):
            found.append(_span(node))
    return found
