"""The language of signatures: what it says, and what is refused."""

from __future__ import annotations

import pytest

from gradwright.errors import DefinitionError
from gradwright.wrapping.signature import parse


class Sized:
    def __init__(self, *shape: int) -> None:
        self.shape = shape


def test_everything_that_can_be_said() -> None:
    found = parse(
        "f",
        """n:int, *lda : i4 = n + 1, mu:f4=-1e-6, a[n, 2*n - 1] : f8 : F : inout, k:i8, z[k//2]:f8:out,
        w[3,n]:f4:work, *info:int:status(0, -1) -> y:f8""",
    )
    assert [p.name for p in found.arguments] == ["a", "k"]
    assert [p.name for p in found.outputs] == ["y", "a", "z"]
    n, lda, _, a, _, z, w, info = found.parameters
    assert (n.passed, lda.passed, a.passed) == ("value", "address", "array")
    assert (a.order, a.intent, w.intent, w.type) == ("F", "inout", "work", "f4")
    assert info.codes == (0, -1)
    known = found.sizes({"a": Sized(4, 7), "k": 9})
    assert known == {"n": 4, "k": 9, "lda": 5, "mu": -1e-6}
    assert [size.value(known) for p in (a, z, w) for size in p.sizes] == [4, 7, 4, 3, 4]
    assert a.text == "a[n,2*n-1]"


def test_what_is_returned() -> None:
    start = "n:int, x[n]:f8:inout"
    assert parse("f", start).result is None
    for text, name, intent, codes in (
        ("int", "status", "status", (0,)),
        ("int(0, 2)", "status", "status", (0, 2)),
        ("f8", "result", "out", (0,)),
        ("count:int", "count", "out", (0,)),
    ):
        result = parse("f", f"{start} -> {text}").result
        assert result is not None
        assert (result.name, result.intent, result.codes) == (name, intent, codes)


def test_sizes_that_no_number_is_declared_for() -> None:
    found = parse("norm", "x[3,n]:f8 -> f8")
    assert [p.name for p in found.arguments] == ["x"]
    assert found.sizes({"x": Sized(3, 8)}) == {"n": 8}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x[3]:f8", "f: by its signature it returns nothing; expected an output"),
        ("x[3]:f9 -> f8", "f: the signature has 'x.3.:f9', and 'f9' is not known; expected one of int, i4, i8, f4, f8"),
        ("x[3]:f8:input -> f8", "'input' is not known; expected one of C, F, in, out, inout, work, status"),
        ("x[3] -> f8", "f: the signature has 'x.3.'; expected `name:type`"),
        ("lambda:f8 -> f8", "f: the signature has 'lambda:f8'; expected `name:type`"),
        ("x[n-1]:f8 -> f8", "has x.n-1., and nothing tells 'n'; expected a size of an array that is handed over"),
        ("y[n]:f8:out", "nothing tells 'n'; expected .*`n:int`"),
        ("x[n**2]:f8, n:int -> f8", "the size or value 'n..2'; expected a name, a number, or a sum"),
        ("x[n()]:f8, n:int -> f8", "the size or value 'n..'; expected"),
        ("n:f8, x[n]:f8 -> f8", "the size 'n' of x.n. is f8; expected int, i4 or i8"),
        ("x:f8, x[2]:f8 -> f8", "has two arguments 'x'"),
        ("n[n]:f8 -> f8", "has an array and a size 'n'"),
        ("x:f8:out", "'x:f8:out', which is passed by value, and so cannot be out; write .x"),
        ("*x[3]:f8:out", "which is an array, and arrays are passed by their address always"),
        ("x[3]:f8, *info:f8:status -> f8", "but a status is one whole number; write .info:int:status"),
        ("x[3]:f8=2 -> f8", "but only a number that is handed over can have a value"),
        ("x[n]:f8, a:int=n, b:int=a -> f8", "the value of 'b' is made of 'a', which has one itself"),
        ("x[3]:f8 -> double", "'-> double', and 'double' is not known"),
        ("x[3]:f8, y[3]:f8:out -> void", "'-> void'; expected the type of a result; leave it away"),
        (7, "f: the signature is 7; expected text"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        parse("f", text)
