"""What the router adds to a first token and to every further one, with the fake engine behind it."""
