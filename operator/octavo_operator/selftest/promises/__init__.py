"""The promises that the selftest puts to the test, by subject."""
