"""Linear layers of packed weights, a part of the native step. README.md has the layout."""
