"""The compiled modules of fairseq in Python and NumPy: the same results, slower.

The hook offers these modules where a fairseq was installed without a compiler (``python -m fairseq_compat install
--no-compiler``) under the names of the compiled ones, and only where those are missing, as ``fairseq.libnat`` always is
if fairseq came from the index. ``fairseq.libbase`` (expert layers) has no counterpart.
"""
