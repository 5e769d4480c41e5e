"""Does `compare` answer in a minute for all TPUs and GPUs, and do compilers agree where they are asked?"""
