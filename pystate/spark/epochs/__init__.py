"""Epochs run and published: of a batch, a stream, a loop; and what is reported of them."""
