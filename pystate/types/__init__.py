"""Types of keys and states: their declaration, and columns of them in and out."""
