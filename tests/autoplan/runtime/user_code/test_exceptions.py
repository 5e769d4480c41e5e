from __future__ import annotations

import numpy as np
import pytest

from autoplan.runtime.user_code.exceptions import chain, raised_by_python, raising_entry


def caught(raising):
    with pytest.raises(BaseException) as found:  # noqa: PT011 -- each raises its own
        raising()
    return found.value


def kinds(error):
    return [type(one) for one in chain(error)]


def from_a_cause():
    try:
        raise MemoryError
    except MemoryError as error:
        raise RuntimeError("it failed") from error


def hidden_by_from_none():
    try:
        from_a_cause()
    except RuntimeError:
        raise ValueError("another") from None


def in_a_group():
    raise ExceptionGroup("two", [KeyError("a"), caught(from_a_cause)])


def test_causes_contexts_and_members_of_groups_are_in_the_chain():
    assert kinds(ValueError()) == [ValueError]
    assert kinds(caught(from_a_cause)) == [RuntimeError, MemoryError]
    assert kinds(caught(hidden_by_from_none)) == [ValueError, RuntimeError, MemoryError]
    assert set(kinds(caught(in_a_group))) == {ExceptionGroup, KeyError, RuntimeError, MemoryError}


def test_a_chain_that_leads_back_to_itself_ends():
    one, other = ValueError(), KeyError()
    one.__cause__, other.__context__ = other, one
    assert kinds(one) == [ValueError, KeyError]


def test_compiled_code_raises_without_a_raise_statement():
    assert raised_by_python(caught(from_a_cause))
    assert not raised_by_python(caught(lambda: np.zeros(2**60)))
    assert not raised_by_python(caught(lambda: {}["a"]))
    assert not raised_by_python(RuntimeError("never raised"))
    assert raising_entry(RuntimeError("never raised")) is None
