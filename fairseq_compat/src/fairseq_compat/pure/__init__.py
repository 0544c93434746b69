"""What fairseq compiles, stated in Python and NumPy: the same results, slower.

The hook offers these modules where a fairseq was installed without a compiler (``python -m fairseq_compat install
--no-compiler``) under the names of the compiled ones, and only there. ``fairseq.libnat``
and ``fairseq.libbase`` (Levenshtein transformer, expert layers) have no counterpart.
"""
