"""`--embed-init`: fill the embedding matrices of any fairseq model when its training starts.

plugin (fairseq has built a model) -> request (options) -> restore (continued training?) -> slots (its matrices)
-> fill (read vectors, apply the strategy, report) -> freeze.
"""
