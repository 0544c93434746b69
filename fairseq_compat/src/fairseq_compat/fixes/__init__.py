"""Contain one file per fix. :data:`fairseq_compat.hook.FIXES` has the modules of fairseq on which a fix acts.

The first line of its docstring is the reason in the status table; then come the symptom, versions (default: all),
place, remedy, and the issue upstream if there is one. A fix is removed when its module of fairseq has the repaired
code, or as "Can go" says. A fix defines:

    BROKEN            regular expression of the code that it changes
    FIXED             maybe: regular expression of a module that does not have this code and does not need the fix
    needed()          maybe: False if the installed versions of Python and the libraries do not need it
    patch(module)     changes a module of fairseq after its execution
    PATCHES           instead, or as well: name of a module -> the function that changes this one
    executing(module) instead, or as well: a context manager around its execution
"""
