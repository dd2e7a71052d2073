"""The driver's half of the checkpoint protocol, which never touches live state."""
