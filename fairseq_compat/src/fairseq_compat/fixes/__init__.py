"""One file per fix. :data:`fairseq_compat.hook.FIXES` says on which modules of fairseq a fix acts.

The first line of its docstring is the reason in the status table; then come the symptom, versions (all, if nothing is
said), place, remedy, and the issue upstream if there is one. A fix goes when its module of fairseq has the repaired
code, or as "Can go" says. It defines:

    BROKEN            regular expression of the code that it changes
    FIXED             maybe: regular expression of a module that does not have this code and does not need the fix
    needed()          maybe: False if the installed versions of Python and the libraries do not need it
    patch(module)     changes a module of fairseq after its execution
    PATCHES           instead, or as well: name of a module -> the function that changes this one
    executing(module) instead, or as well: a context manager around its execution
"""
