"""What every layer may use: arguments, locks, memory, notes."""
