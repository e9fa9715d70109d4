"""Tools of the tests: events, recipients, a proxy that drops bytes, child processes."""
