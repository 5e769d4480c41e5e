"""The reference of the Python API is generated from the docstrings, and is up to date."""

import runpy
import subprocess
import sys
from pathlib import Path

import autoplan
import cost_models

ROOT = Path(__file__).resolve().parent.parent
GENERATOR = runpy.run_path(str(ROOT / ".ci/api_page.py"))


def test_the_page_is_up_to_date():
    assert GENERATOR["PAGE"].read_text() == GENERATOR["page"](), "run `python .ci/api_page.py`"


def test_the_page_describes_every_public_name():
    page = GENERATOR["page"]()
    for package in (autoplan, cost_models):
        names = [name for name in package.__all__ if not name.startswith("__")]
        assert names
        assert not [name for name in names if f"### `{package.__name__}.{name}`\n" not in page]


MADE_UP = '''
class Made:
    """Say what it is.

        code(1)

        code(2)

    short, name  an item
                 that goes on
    longest_name another item
    Then text.
    """

    field: int = 1
    _hidden: int = 2

    @property
    def size(self) -> int:  # noqa: A003
        """Return its size."""
        return 1
'''
DESCRIBED = """
### `package.Made`

```python
class Made:
    field: int = 1
```

Say what it is.

```python
code(1)

code(2)
```

- `short`, `name`: an item
  that goes on
- `longest_name`: another item

Then text.

#### `Made.size`

```python
@property
def size(self) -> int
```

Return its size.
"""


def test_the_page_is_made_without_importing_a_framework():
    code = "import runpy, sys; runpy.run_path('.ci/api_page.py')['page'](); print({'keras', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_a_docstring_becomes_text_lists_and_code(tmp_path):
    file = tmp_path / "made_up.py"
    file.write_text(MADE_UP)
    source = GENERATOR["source_of_class"](file, "Made")
    assert "\n\n".join(GENERATOR["described"]("package.Made", source)) == DESCRIBED.strip()


def test_no_module_hides_a_public_name():
    """Python sets an imported module as an attribute of its package, in place of a function of the same name."""
    modules = {path.stem for path in (ROOT / "autoplan").iterdir()}
    assert "planner" in modules
    assert not modules & set(autoplan.__all__)
