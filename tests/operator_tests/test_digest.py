"""The digest is a label of running pods: another one for the same value would roll them."""

import json
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from octavo_operator.core.digest import digest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
)


@given(JSON)
def test_digest_is_that_of_canonical_json(value: object) -> None:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert digest(value) == sha256(text.encode()).hexdigest()[:16]


def test_digest_of_a_known_value_stays_the_same() -> None:
    assert digest({"b": [1, 2.5, None, True], "a": {"é": 'x"\\\n\u2028'}}) == "ac0b09698a2a1fa4"
