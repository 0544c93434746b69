"""How fast a training is, measured as fairseq's Trainer does its steps."""
