"""Does a plan shorten a whole training? Compares the script with `autoplan train`, in alternating pairs."""
