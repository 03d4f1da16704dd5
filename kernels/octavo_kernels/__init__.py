"""Octavo's kernels: one folder per operation, several forms of each, one of them the plain truth."""
