"""Pictures, as PNG, with the numbers behind them."""
