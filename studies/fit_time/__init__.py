"""Does the tuned plan shorten a whole training? Plain script against `autoplan train`, in alternating pairs."""
