# fairseq first: the end of its import registers all modules of this plugin in their order.
import fairseq  # noqa: F401
