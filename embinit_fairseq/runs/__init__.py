"""Trainings and what came out of them: started with a record, read from disk, scored, compared."""
