"""New words for a trained model, with a bound on how much it changes (Hewitt 2021)."""
