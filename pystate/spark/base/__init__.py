"""What Spark is and requires: versions, schemas, arguments, options, routing, connections."""
