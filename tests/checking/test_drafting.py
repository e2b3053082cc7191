"""Samples become the source of a declaration, which gives samples on which forward runs as before."""

import textwrap
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradwright.checking.drafting import draft, template
from gradwright.checking.samples import Sample, declared_samples
from gradwright.checking.subject import as_subject


def make(forward, name="Scale"):
    return as_subject(type(name, (Function,), {"forward": staticmethod(forward), "backward": lambda ctx, g: g}))


def declared(made, name="Scale"):
    """Run a draft as a file of samples and return what it declares."""
    assert made.reason == ""
    assert max(map(len, made.text.splitlines())) <= 88
    scope: dict[str, Any] = {"torch": torch}
    exec(made.text, scope)
    return declared_samples(scope[f"samples_{name}"], name)


def test_guesses_are_drawn_and_said_to_be_guesses():
    subject = make(lambda ctx, x, k: x * k)
    sample = Sample((torch.randn(3, 4, dtype=torch.float64), 2), provenance="synthesised")
    made = draft(subject, [sample], ["k: held constant"], seed=3)
    assert made.text == textwrap.dedent(
        """\
        def samples_Scale():
            # synthesised: a guess that runs; correct what the arguments are not.
            # k: held constant
            generator = torch.Generator().manual_seed(3)
            x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
            k = 2
            yield x, k"""
    )
    (again,) = declared(made)
    assert (again.args[0].shape, again.args[1]) == ((3, 4), 2)


def test_recorded_samples_are_kept_as_far_as_they_are_few():
    subject = make(lambda ctx, x, w, b: x @ w + b)
    x, w, b = torch.randn(2, 3), torch.randn(3, 50), torch.randn(1).expand(50)
    recorded = Sample((x, w, b), provenance="recorded")
    (again,) = declared(draft(subject, [recorded], [], seed=0))
    assert torch.equal(again.args[0], x)
    assert again.args[1].shape == (3, 50)
    assert not torch.equal(again.args[1], w)
    assert torch.equal(again.args[2], b)
    assert again.args[2].stride() == (0,)


def test_which_tensors_are_differentiated_is_said_where_it_is_not_all():
    subject = make(lambda ctx, x, y: x * y)
    x, y = torch.ones(2, requires_grad=True), torch.ones(2)
    (again,) = declared(draft(subject, [Sample((x, y))], [], seed=0))
    assert [t.requires_grad for t in again.args] == [True, False]
    made = draft(subject, [Sample((x, x))], [], seed=0)
    assert "requires_grad" not in made.text


def test_keywords_names_and_containers():
    subject = as_subject(lambda *xs, scale=1.0: sum(xs) * scale, "Scale")
    samples = [
        Sample((torch.ones(2), torch.ones(2)), {"scale": 2.0}, name='with "scale"'),
        Sample((torch.ones(3),)),
        Sample(tuple(torch.ones(1) for _ in range(30))),
    ]
    first, second, third = declared(draft(subject, samples, [], seed=0))
    assert (len(first.args), first.kwargs, first.name) == (2, {"scale": 2.0}, 'with "scale"')
    assert (len(second.args), second.kwargs, second.name) == (1, {}, None)
    assert len(third.args) == 30
    nested = make(lambda ctx, pairs: pairs[0][0] * pairs[0][1])
    (again,) = declared(draft(nested, [Sample(([(torch.ones(2), 3)],))], [], seed=0))
    assert again.args[0][0][1] == 3
    assert isinstance(again.args[0][0][0], Tensor)


def test_numbers_are_kept_where_forward_runs_on_no_others():
    def forward(ctx, x):
        if float(x.sum()) != 210.0:
            raise ValueError("not these")
        return x

    x = torch.arange(21, dtype=torch.float64)
    (again,) = declared(draft(make(forward), [Sample((x,), provenance="recorded")], [], seed=0))
    assert torch.equal(again.args[0], x)
    (again,) = declared(draft(make(forward), [Sample((x,), provenance="synthesised")], [], seed=0))
    assert torch.equal(again.args[0], x)


def test_what_is_too_large_for_that_is_left_to_a_person():
    def forward(ctx, x):
        if float(x.sum()) != 44850.0:
            raise ValueError("not these")
        return x

    made = draft(make(forward), [Sample((torch.arange(300.0),), provenance="recorded")], [], seed=0)
    assert "forward does not run on inputs that are merely like those" in made.reason
    assert all(line.startswith("#") for line in made.text.splitlines())


def test_inputs_on_which_forward_raised_are_written_too():
    def forward(ctx, x):
        raise ValueError("never")

    assert len(declared(draft(make(forward), [Sample((torch.ones(2),))], [], seed=0))) == 1


def test_an_object_that_cannot_be_written_makes_it_a_template():
    subject = make(lambda ctx, x, fn: fn(x))
    made = draft(subject, [Sample((torch.ones(2), lambda x: x))], [], seed=0)
    assert "one of the arguments is an object of type function that no module has under its name" in made.reason
    assert "#     fn = ..." in made.text


def test_a_template_names_the_parameters():
    def forward(ctx, x: Tensor, fn: "Callable[[Tensor], Tensor]", k=2, *, how):  # noqa: F821
        return fn(x)

    made = template(as_subject(forward, "Outer.Scale"), "Scale: nothing was found; " + "because of much " * 10)
    lines = made.text.splitlines()
    assert all(line.startswith("#") for line in lines)
    assert max(map(len, lines)) <= 88
    source = "\n".join(line[2:] for line in lines[lines.index("#") + 1 :])
    assert source == textwrap.dedent(
        """\
        def samples_Outer_Scale():
            ctx = ...
            x = ...  # Tensor
            fn = ...  # Callable[[Tensor], Tensor]
            how = ...
            yield {"args": (ctx, x, fn), "kwargs": {"how": how}}"""
    )
    compile(source, "template", "exec")


def test_a_template_where_the_parameters_are_not_known():
    assert "#     x = ..." in template(as_subject(print, "print"), "print: why").text
