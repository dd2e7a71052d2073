"""The driver's half of the checkpoint protocol. Never touches live state."""
