"""Does tuning correct a bad setting in a training script?"""
