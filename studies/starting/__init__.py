"""Does a forked trial do what one of its own would? Starts many, both ways, on each backend."""
