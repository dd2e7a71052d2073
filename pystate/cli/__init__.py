"""The command line ``pystate``: commands over checkpoints and savepoints."""
