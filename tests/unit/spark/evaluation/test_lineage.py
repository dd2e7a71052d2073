"""What feeds a frame, read from plans as Spark 4 writes them."""

from __future__ import annotations

import pytest

from pystate.spark.evaluation.lineage import (
    Lineage,
    columns_of,
    lineage,
    node_numbers,
    original,
    selection_of,
)

OPERATORS = {"10": "a", "34": "b"}
A = """\
Project [c0#11 AS k#13, c1#12L AS v#14L]
+- MapInArrow a_(b) \\(c0#7, c1#8L, __pystate_range#9)#10, [c0#11, c1#12L], false
   +- Project [k#0 AS c0#7, v#1L AS c1#8L, __pystate_range#4 AS __pystate_range#9]
      +- Union false, false
         :- Project [k#0, v#1L, cast(null as int) AS __pystate_range#4]
         :  +- LogicalRDD [k#0, v#1L], false
         +- Range (0, 2, step=1, splits=Some(1))
"""
B = A.replace("#10,", "#34,")
OTHER = A.replace("#10,", "#77,")
RAW = "LogicalRDD [k#90, v#91L], false\n"
LOCAL = "LocalRelation [k#90, v#91L]\n"


def over(node: str, *below: str) -> str:
    """The text of a node over others."""
    lines = [node]
    for position, text in enumerate(below):
        last = position == len(below) - 1
        first, *more = text.rstrip("\n").split("\n")
        lines.append(("+- " if last else ":- ") + first)
        lines += [("   " if last else ":  ") + line for line in more]
    return "\n".join(lines) + "\n"


def found(text: str) -> tuple[str, int, bool]:
    result = lineage(text, OPERATORS)
    return "".join(sorted(result.operators)), len(result.materialised), result.sources


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (A, ("a", 0, False)),
        (RAW, ("", 1, False)),
        (LOCAL, ("", 0, True)),
        # What is below an operator that this evaluation does not know counts itself.
        (OTHER, ("", 1, True)),
        (over("Filter (k#13 = x)", A), ("a", 0, False)),
        (over("Union false, false", A, B), ("ab", 0, False)),
        (over("Union false, false", A, LOCAL), ("a", 0, True)),
        (over("Union false, false", LOCAL, A), ("a", 0, True)),
        (over("Union false, false", A, RAW, B), ("ab", 1, False)),
        # Only the last operator feeds the frame.
        (B.replace("LogicalRDD [k#0, v#1L], false", A.split("\n")[0]), ("b", 0, False)),
        (over("Join Inner, (k#1 = k#2)", over("SubqueryAlias l", A), A), ("a", 0, False)),
        # Literals with line breaks continue a line.
        (over("Filter (k#13 = x\ny)", A), ("a", 0, False)),
        (over("Filter (k#13 = x\n+-y)", A), ("a", 0, False)),
    ],
)
def test_what_feeds_a_frame(text: str, wanted: tuple[str, int, bool]) -> None:
    assert found(text) == wanted


SUBQUERIES = """\
Project [k#52, scalar-subquery#82 [] AS m#83L]
:  +- Aggregate [max(id#87L) AS max(id)#89L]
:     +- Range (0, 3, step=1)
+- Filter k#52 IN (list#84 [])
   :  +- Project [k#90]
   :     +- Range (0, 3, step=1)
   +- Join Inner, (k#52 = k#85)
"""


def test_subqueries_supply_no_rows() -> None:
    below = over("Join", A, over("SubqueryAlias y", B)).split("\n")[1:-1]
    assert found(SUBQUERIES + "\n".join("      " + line for line in below)) == ("ab", 0, False)
    below = over("Join", A, LOCAL).split("\n")[1:-1]
    assert found(SUBQUERIES + "\n".join("      " + line for line in below)) == ("a", 0, True)


def test_common_table_expressions_count_where_they_are_defined() -> None:
    definition = over("CTERelationDef 0, false", over("SubqueryAlias x", A))
    text = over(
        "WithCTE",
        definition,
        over("Project [k#52]", "CTERelationRef 0, true, [k#52, v#53L], false, false"),
    )
    assert found(text) == ("a", 0, False)


def test_materialised_frames_are_known_by_their_columns() -> None:
    text = over("Union false, false", RAW, "LogicalRDD [k#5, ... 30 more fields], false")
    assert lineage(text, OPERATORS) == Lineage(
        frozenset(), (frozenset({"90", "91"}), frozenset({"5"})), False
    )
    assert columns_of("k#60L stamp#61") == {"60", "61"}


def test_numbers_of_nodes() -> None:
    assert node_numbers(A) == ["10"] and node_numbers(RAW) == []
    assert node_numbers(over("Union", OTHER, B)) == ["77", "34"]


TOP = A.splitlines()[0]


@pytest.mark.parametrize(
    ("nodes", "columns"),
    [
        ([], None),
        (["Project [k#13, v#14L]"], ["13", "14"]),
        (["Project [v#14L, k#13 AS a#20, k#13 AS b#21]"], ["14", "13", "13"]),
        (["Project [b#31]", "Project [a#20 AS b#31, v#14L]", "Project [k#13 AS a#20, v#14L]"],
         ["13"]),
    ],
)  # fmt: skip
def test_a_plan_that_only_selects(nodes: list[str], columns: list[str] | None) -> None:
    assert selection_of(chain(nodes), {TOP, "Range (0, 1)"}) == (TOP, columns)


@pytest.mark.parametrize(
    "nodes",
    [
        ["Filter (k#13 > 1)"],
        ["Project [k#13]", "Filter (k#13 > 1)"],
        ["Project [(v#14L + 1) AS w#20L]"],
        ["Project [k#13, 1 AS one#20]"],
        ["Project [k#13 AS `a, v#14L`#20]"],
        ["Project [k#13, v#14L, ... 3 more fields]"],
        ["Project [a#99]"],
        ["Project [b#31]", "Project [k#13 AS a#20, v#14L]"],
        ["Sort [k#13 ASC NULLS FIRST], false", "Project [k#13]"],
        ["Union false, false"],
    ],
)
def test_a_plan_that_does_more(nodes: list[str]) -> None:
    found = selection_of(chain(nodes), {TOP})
    # A number that the operator does not have is found by who knows them.
    assert found is None or found == (TOP, ["99"])


def test_a_plan_over_something_else() -> None:
    assert selection_of(chain(["Project [k#13]"]), {"Range (0, 1)"}) is None
    assert selection_of("", {TOP}) is None


def chain(nodes: list[str]) -> str:
    text = A
    for node in reversed(nodes):
        text = over(node, text)
    return text


@pytest.mark.parametrize(
    ("text", "column", "wanted"),
    [
        (A, "14", "14"),
        (over("Project [k#13, v#14L AS x#20L]", A), "20", "14"),
        (over("Project [x#20L AS y#21L]", over("Project [v#14L AS x#20L]", A)), "21", "14"),
        (over("Join Inner", over("Project [v#14L AS x#20L, k#13 AS y#22]", A), RAW), "22", "13"),
        # What is computed is another column, and so is one of another frame.
        (over("Project [(v#14L + 1) AS x#20L]", A), "20", None),
        (over("Project [cast(v#14L as int) AS x#20]", A), "20", None),
        (over("Join Inner", A, RAW), "90", None),
        # A union has the numbers of its first part.
        (over("Union false, false", A, B), "14", None),
        # What is below the operator is not of its output.
        (over("Project [v#14L AS v#1L]", A), "8", None),
    ],
)
def test_which_column_of_an_operator_it_is(text: str, column: str, wanted: str | None) -> None:
    assert original(text, OPERATORS, column, ["13", "14"]) == wanted
