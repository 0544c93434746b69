# Whoever imports this room before fairseq: fairseq first, since the end of its import registers everything of ours.
import fairseq  # noqa: F401
