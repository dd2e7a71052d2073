"""The one extension module, `core`: a thin wrapper over the header of the C core."""
