"""One file per workaround.

Each has ``needed()`` (is it needed with the installed versions?), ``REASON`` (one line for the status table) and
``patching(module)``, a context manager around the execution of a module of fairseq: what stands before its ``yield``
happens before the module executes, what stands after it, afterwards. Which fix acts on which module is said in
:data:`fairseq_compat.hook.FIXES`.
"""
