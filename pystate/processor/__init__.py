"""State outside a running job: read, compared between epochs, and written."""
