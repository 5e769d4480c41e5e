"""Does `--backend auto` find the backend on which a training is fastest, and is it the same training there?"""
