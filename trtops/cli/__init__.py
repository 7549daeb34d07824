"""The command line: parse, call one workflow, print its report, exit with its code."""
