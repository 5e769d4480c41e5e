"""Does `--backend auto` find the backend on which a training is fastest, with the same losses?"""
