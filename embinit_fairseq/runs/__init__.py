"""Start trainings with a record, read their results from disk, score and compare them."""
