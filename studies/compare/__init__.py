"""Does `autoplan compare` answer in a minute for all TPUs and GPUs, and do the compilers agree?"""
