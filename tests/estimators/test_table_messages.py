"""What is wrong with a table is named: the row, the bag or the column, and what to do."""

import gzip

import numpy as np
import pyarrow as pa
import pytest

from equipool.estimators import TableError
from equipool.estimators.tables import read_table, read_training_table


def table(**changes):
    """Three bags; a column that is None is left out."""
    columns = {"b": ["u", "u", "v", "w"], "y": [1, 1, 0, 1], "x": [1.0, 2.0, 3.0, 4.0],
               "c": ["red", "blue", "red", "blue"]} | changes  # fmt: skip
    return {name: values for name, values in columns.items() if values is not None}


REFUSED = {
    "a label that varies": (
        table(y=[1, 0, 0, 1]), {}, ["row 1 (bag 'u')", "column 'y' has '0', but '1' in earlier"],
    ),
    "a label that is missing in a row": (
        table(y=[1, None, 0, 1]), {}, ["row 1 (bag 'u')", "column 'y' has no value, but '1"],
    ),
    "a bag without a label": (table(y=[1, 1, None, 1]), {}, ["bag 'v'", "'y' has no value"]),
    "a bag in two folds": (
        table(g=["a", "b", "a", "a"]), {"group": "g"}, ["row 1 (bag 'u')", "'g' has 'b', but 'a'"],
    ),
    "negative weights": (table(w=[1, 1, -1, 1]), {"weight": "w"}, ["column 'w'", "0 or more"]),
    "no bag": (table(b=["u", None, "v", "w"]), {}, ["row 1", "'b' does not name a bag"]),
    "a missing number": (
        table(x=[1.0, 2.0, None, 4.0]), {}, ["row 2 (bag 'v')", "'x' has no value", "--missing"],
    ),
    "text where numbers belong": (
        table(x=["1", "2", "3", "four"]), {}, ["row 3 (bag 'w')", "'four', expected a number"],
    ),
    "a number where text belongs": (
        table(c=["red", "blue", "3", "red"]), {}, ["row 0 (bag 'u')", "column 'c' has 'red'"],
    ),
    "infinity": (table(x=["1", "inf", "2", "3"]), {}, ["row 1", "inf, expected a finite"]),
    "too large for float32": (table(x=[1.0, 1e300, 2.0, 3.0]), {}, ["row 1", "1e+300"]),
    "whole numbers beyond 2^53": (
        table(x=[1, 2, 2**53 + 1, 4]), {}, ["row 2 (bag 'v')", "'x' has 9007199254740993", "2^53"],
    ),
    "whole numbers beyond 2^53 as text": (
        table(x=["1", "2", "9007199254740993", "4"]), {}, ["row 2 (bag 'v')", "2^53"],
    ),
    "whole numbers beyond 2^53 beside missing ones": (
        table(x=[None, 2, 2**53 + 1, 4]), {}, ["row 2 (bag 'v')", "has 9007199254740993"],
    ),
    **{
        f"{like} in {column}": (
            table(**{column: [like, like, "7", like]}), {},
            [f"column '{column}' has '{like}', expected ", "numbers such as 1234.5"],
        )
        for like in (
            "1,5", "1.234,5", "1 234", "1_234", "\u22125", "(5)", "12 %", "31.12.2024",
            "1 Feb 2024", "2024-01",
        )
        for column in ("x", "y")
    },
    "nothing left": (table(x=None, c=None), {}, ["no column is left"]),
    "text in several labels": (
        table(z=["p", "p", "q", "q"]), {"label": ["y", "z"]}, ["column 'z' has text"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_wrong_is_named(case):
    given, more, messages = REFUSED[case]
    with pytest.raises(TableError) as caught:
        read_training_table(given, **({"bag": "b", "label": "y"} | more))
    for message in messages:
        assert message in str(caught.value)


def test_a_column_is_used_once():
    for more in ({"features": ["x", "y"]}, {"weight": "y"}, {"features": ["x", "x"]}):
        with pytest.raises(ValueError, match="is used twice"):
            read_training_table(table(), bag="b", label="y", **more)


def test_columns_of_the_same_name_are_refused_if_they_are_used(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("b,y,x,x\n0,1,2,3\n1,0,4,5\n")
    with pytest.raises(TableError, match="2 columns named 'x': rename"):
        read_training_table(path, bag="b", label="y")


def test_too_many_categories_are_taken_for_names():
    names = [f"cell {number}" for number in range(101)]
    given = {"b": range(101), "y": np.arange(101) % 2, "id": names, "x": range(101)}
    with pytest.raises(TableError, match=r"'id' has more than 100 different.*--exclude id"):
        read_training_table(given, bag="b", label="y")


def test_constant_columns_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="left out, as all values are equal: 'x'"):
        schema, _ = read_training_table(table(x=[2.0] * 4), bag="b", label="y")
    assert schema.channels == ("c=blue", "c=red")


@pytest.mark.parametrize("missing", ["error", "keep"])
def test_features_that_are_constant_in_each_bag_are_kept_with_a_warning(missing):
    ages = [5.0, 5.0, 6.0, 5.0] if missing == "error" else [np.nan, np.nan, 6.0, 5.0]
    given = table(age=ages, site=["A", "A", "B", "A"])
    with pytest.warns(UserWarning, match=r"of each bag: 'age', 'site'\. .*--exclude age\)"):
        schema, _ = read_training_table(given, bag="b", label="y", missing=missing)
    assert schema.channels == ("x", "c=blue", "c=red", "age", "site=A", "site=B")
    # No warning: they are left out.
    read_training_table(given, bag="b", label="y", missing=missing, exclude=["age", "site"])


@pytest.fixture
def schema():
    return read_training_table(table(), bag="b", label="y")[0]


AT_PREDICTION = {
    "an unknown category": (
        table(c=["red", "pink", "red", "red"]),
        ["row 1 (bag 'u')", "column 'c' has 'pink'", "'blue', 'red'", "--unknown ignore"],
    ),
    "a missing column": (table(x=None), ["no column 'x'"]),
    "a missing number": (table(x=[1.0, None, 2.0, 3.0]), ["row 1 (bag 'u')", "missing='mean'"]),
    "dates": (table(x=pa.array([0, 1, 2, 3], pa.date32())), ["'x' has dates, but numbers in"]),
    "text": (table(x=["1", "2", "many", "3"]), ["row 2 (bag 'v')", "'many', expected a number"]),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_PREDICTION)
def test_what_is_wrong_at_prediction_is_named(schema, case):
    given, messages = AT_PREDICTION[case]
    with pytest.raises(TableError) as caught:
        read_table(given, schema)
    for message in messages:
        assert message in str(caught.value)
    assert "exclude" not in str(caught.value)  # it is no option of prediction


def test_unknown_categories_can_be_read_as_none(schema):
    found = read_table(table(c=["red", "pink", "red", "red"]), schema, unknown="ignore")
    assert np.array_equal(found.bags.elements[:, 1:], [[0, 1], [0, 0], [0, 1], [0, 1]])


def test_files_that_cannot_be_read_are_named(tmp_path):
    contents = {
        "empty": (b"", "is empty: expected a first line"),
        "short rows": (b"b,y,x\n\n0,1,2\n0,1\n", "line 4: found 2 cells, expected 3"),
        "another encoding": ("b,y,x\n0,1,2\né,1,2\n".encode("latin-1"), "line 3: column 1 .*'é'"),
        "in a category": ("b,y,x\n0,1,r\n1,1,é\n".encode("latin-1"), "line 3: column 3 .*'é'"),
        "other separators": (b"b;y;x\n0;1;2\n", "separated by commas"),
        "broken gzip": (gzip.compress(b"b,y,x\n0,1,2\n" * 99)[:40], "cannot be read"),
        "broken parquet": (b"PAR1 and more", "cannot be read"),
    }
    for content, message in contents.values():
        path = tmp_path / "table"
        path.write_bytes(content)
        with pytest.raises(TableError, match=message) as caught:
            read_training_table(path, bag="b", label="y")
        assert str(path) in str(caught.value)
    with pytest.raises(TableError, match="No such file"):
        read_training_table(tmp_path / "none.csv", bag="b", label="y")


@pytest.mark.parametrize("stray", [[7], [7, 12]])
def test_quotes_that_do_not_pair_hide_no_rows(tmp_path, stray):
    path = tmp_path / "bags.csv"
    rows = [f"u{n},{n % 2},{n}," + ('"' if n in stray else "") + "red" for n in range(20)]
    path.write_text("\n".join(["b,y,x,c", *rows, ""]))
    for more in ({}, {"exclude": ["c"]}):
        with pytest.raises(TableError, match=r"bags\.csv, line 9: quotes do not pair"):
            read_training_table(path, bag="b", label="y", **more)


@pytest.mark.parametrize("zipped", [False, True])
def test_csv_errors_give_the_line_of_an_editor(tmp_path, zipped):
    """Blank lines and line breaks inside of cells count."""
    path = tmp_path / "bags.csv"
    lines = b"two\nlines" + 200_000 * b"."
    text = b'b,y,x,c\n\nu,1,1,red\nu,1,2,"' + lines + b'"\nv,0,,red\n'
    path.write_bytes(gzip.compress(text) if zipped else text)
    with pytest.raises(TableError, match=r"bags\.csv, line 6 \(bag 'v'\): column 'x' has no value"):
        read_training_table(path, bag="b", label="y")
